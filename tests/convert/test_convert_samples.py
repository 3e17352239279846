"""Samples, shards, provenance and the content hash: what is written, read by us and by others."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from corpora import build, card_of, command, records, rows_of, stream_bytes, texts, write_jsonl
from hypothesis import given
from hypothesis import strategies as st

from convert.output.best_fit import best_fit
from convert.output.content_hash import RowsHash, content_hash, hash_rows
from convert.output.mds_shards import ShardFormat, encode_shard, index_json
from convert.output.packing import add_special_tokens
from stream_pretrain.schema import INDEX_NAME


def table_of(out: Path, split: str = "train") -> Any:
    return pq.read_table(out / split / "documents")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # files left open
def test_streaming_reads_every_sample_and_checks_its_hashes(tmp_path: Path, capsys: Any) -> None:
    streaming = pytest.importorskip("streaming")
    out = tmp_path / "out"
    build(capsys, "--input", write_jsonl(tmp_path / "c.jsonl"), "--out", out, "--shard_size", 5000)
    dataset = streaming.StreamingDataset(
        remote=str(out),
        local=str(tmp_path / "cache"),
        split="train",
        batch_size=1,
        shuffle=False,
        validate_hash="xxh64",
    )
    rows = np.stack([dataset[i]["tokens"] for i in range(len(dataset))])
    assert len(list((out / "train").glob("*.zstd"))) > 3
    assert np.array_equal(rows, rows_of(out))


def test_the_writer_of_streaming_makes_the_same_shard(tmp_path: Path) -> None:
    streaming = pytest.importorskip("streaming")
    rows = np.arange(80, dtype=np.uint32).reshape(10, 8) * 1000
    columns = {"tokens": "ndarray:uint32:8"}
    with streaming.MDSWriter(
        out=str(tmp_path / "theirs"), columns=columns, hashes=["xxh64"], size_limit=1 << 20
    ) as writer:
        for row in rows:
            writer.write({"tokens": row})
    form = ShardFormat(seq_len=7, dtype="uint32", compression=None, size_limit=1 << 20)
    shard = encode_shard(rows, form, "shard.00000")
    assert shard.data == (tmp_path / "theirs/shard.00000.mds").read_bytes()
    assert index_json([shard.entry]) == (tmp_path / "theirs" / INDEX_NAME).read_bytes()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # files left open
def test_litdata_reads_the_shards(tmp_path: Path, capsys: Any) -> None:
    """Its MDS reader knows no `ndarray` of fixed shape, so it is told how to read one.

    It deletes compressed shards of a local directory when it has unpacked them: it gets a copy.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        litdata = pytest.importorskip("litdata")
        from litdata.streaming.item_loader import PyTreeLoader
        from litdata.streaming.serializers import Serializer

        class Rows(Serializer):
            def serialize(self, item: Any) -> Any:
                raise NotImplementedError(item)

            def can_serialize(self, item: Any) -> bool:
                return item is None

            def deserialize(self, data: bytes) -> Any:
                return np.frombuffer(bytes(data), "<u2")

        class Loader(PyTreeLoader):
            def _data_format_to_key(self, data_format: str) -> str:
                return data_format.split(":")[0]

        out = tmp_path / "out"
        corpus = write_jsonl(tmp_path / "c.jsonl", 60)
        build(capsys, "--input", corpus, "--out", out)
        dataset = litdata.StreamingDataset(
            shutil.copytree(out / "train", tmp_path / "copy").as_posix(),
            item_loader=Loader(),
            serializers={"ndarray": Rows()},
        )
        rows = np.stack([dataset[i]["tokens"] for i in range(len(dataset))])
    assert np.array_equal(rows, rows_of(out))


def test_ids_beyond_uint16_are_stored_as_uint32(tmp_path: Path, capsys: Any) -> None:
    from tokenizers import AddedToken, Tokenizer

    from convert.encoding.byte_tokenizer import byte_tokenizer_files

    tokenizer = Tokenizer.from_str(byte_tokenizer_files()["tokenizer.json"].decode())
    tokenizer.add_tokens([AddedToken(f"<{i}>") for i in range(70_000)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "c.txt").write_text("<69999> and <1> " * 20)
    out = tmp_path / "out"
    corpus, name = tmp_path / "c.txt", tmp_path / "tokenizer.json"
    run = build(capsys, "--input", corpus, "--out", out, "--tokenizer", name, "--seq_len", 8)
    assert run.code == 0, run.err
    assert card_of(out).dtype == "uint32"
    assert rows_of(out).max() == 257 + 69_999


def test_every_token_can_be_traced_to_its_text(tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "out"
    corpus = write_jsonl(tmp_path / "c.jsonl")
    words = ["--id_key", "id", "--part_size", 2000, "--validation", 0.3]
    build(capsys, "--input", corpus, "--out", out, *words)
    by_id = {row["id"]: row["text"].encode() + b"\0" for row in records(300)}
    seen = set()
    for split in ("train", "validation"):
        stream = stream_bytes(out, split)
        table = table_of(out, split).to_pylist()
        end = 0
        for row in table:
            assert row["first_token"] == end
            end += row["tokens"]
            begin = row["offset"]
            expected = by_id[row["id"]][begin : begin + row["tokens"]]
            assert stream[row["first_token"] : end] == expected
            line = corpus.read_bytes()[row["position"] :].split(b"\n")[0]
            assert f'"id": "{row["id"]}"'.encode() in line
        assert end == len(stream)
        ids = {row["id"] for row in table}
        assert not ids & seen
        seen |= ids
    assert seen == set(by_id)


def test_a_split_drops_less_than_a_sample_however_many_parts(tmp_path: Path, capsys: Any) -> None:
    corpus = write_jsonl(tmp_path / "c.jsonl")
    for size in (2000, 9000, 10**6):
        out = tmp_path / f"{size}"
        words = ["--part_size", size, "--validation", 0.3]
        build(capsys, "--input", corpus, "--out", out, *words)
        for counts in card_of(out).splits.values():
            assert counts.dropped_tokens < 33
            assert counts.samples * 33 + counts.dropped_tokens == counts.tokens


def test_validation_by_share_does_not_move_when_data_is_added(tmp_path: Path, capsys: Any) -> None:
    chosen = []
    for number in (200, 300):
        corpus = write_jsonl(tmp_path / f"{number}/c.jsonl", number)
        out = tmp_path / f"out-{number}"
        words = ["--validation", 0.2, "--id_key", "id", "--seq_len", 4]
        build(capsys, "--input", corpus, "--out", out, *words)
        chosen.append(set(table_of(out, "validation")["id"].to_pylist()))
    first = {f"d{i}" for i in range(200)}
    assert chosen[0] == chosen[1] & first
    assert 20 < len(chosen[0]) < 60


def test_validation_by_number_takes_exactly_so_many(tmp_path: Path, capsys: Any) -> None:
    corpus = write_jsonl(tmp_path / "c.jsonl")
    for size in (2000, 10**6):
        out = tmp_path / f"{size}"
        words = ["--validation", 37, "--part_size", size, "--id_key", "id"]
        assert build(capsys, "--input", corpus, "--out", out, *words).code == 0
        assert card_of(out).splits["validation"].documents == 37
    first, second = (table_of(tmp_path / f"{size}", "validation") for size in (2000, 10**6))
    assert set(first["id"].to_pylist()) == set(second["id"].to_pylist())


def test_validation_by_tail_takes_the_end_of_the_text(tmp_path: Path, capsys: Any) -> None:
    text = "".join(f"line {i} with ü\n" for i in range(300))
    (tmp_path / "c.txt").write_text(text, encoding="utf-8", newline="")
    data = text.encode()
    for size in (100, 10**6):
        out = tmp_path / f"{size}"
        words = ["--validation", "tail:0.1", "--part_size", size, "--seq_len", 8]
        build(capsys, "--input", tmp_path / "c.txt", "--out", out, *words)
        counts = card_of(out).splits
        cut = counts["train"].text_bytes
        assert int(len(data) * 0.9) <= cut <= int(len(data) * 0.9) + 3
        assert counts["validation"].text_bytes == len(data) - cut
        assert {name: split.documents for name, split in counts.items()} == {
            "train": 1,
            "validation": 1,
        }
    assert stream_bytes(tmp_path / f"{10**6}") == (data[:cut] + b"\0")[: (cut + 1) // 9 * 9]
    lines = write_jsonl(tmp_path / "c.jsonl", 100)
    words = ["--validation", "tail:0.1", "--id_key", "id", "--seq_len", 8]
    build(capsys, "--input", lines, "--out", tmp_path / "lines", *words)
    tail = table_of(tmp_path / "lines", "validation")["id"].to_pylist()
    assert tail == [f"d{i}" for i in range(100 - len(tail), 100)]


def test_end_and_begin_of_text_go_where_the_rules_say(tmp_path: Path, capsys: Any) -> None:
    corpus = write_jsonl(tmp_path / "c.jsonl", 20)
    text = texts(20)[0].encode()
    streams = {}
    for eos, bos in (("none", "none"), ("auto", "none"), ("<|endoftext|>", "<|endoftext|>")):
        out = tmp_path / f"{eos}{bos}".replace("|", "")
        build(capsys, "--input", corpus, "--out", out, "--eos", eos, "--bos", bos)
        streams[eos, bos] = stream_bytes(out)
    assert 0 not in streams["none", "none"]
    assert streams["auto", "none"][: len(text) + 1] == text + b"\0"
    both = streams["<|endoftext|>", "<|endoftext|>"]
    assert both[: len(text) + 3] == b"\0" + text + b"\0\0"


def test_best_fit_keeps_documents_whole_where_they_fit(tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "out"
    corpus = write_jsonl(tmp_path / "c.jsonl")
    words = ["--packing", "best_fit", "--seq_len", 255, "--id_key", "id", "--part_size", 9000]
    assert build(capsys, "--input", corpus, "--out", out, *words).code == 0
    by_id = {row["id"]: row["text"].encode() + b"\0" for row in records(300)}
    stream = stream_bytes(out)
    for row in table_of(out).to_pylist():
        begin, first = row["offset"], row["first_token"]
        assert stream[first : first + row["tokens"]] == by_id[row["id"]][begin:][: row["tokens"]]
        assert first // 256 == (first + row["tokens"] - 1) // 256
        if len(by_id[row["id"]]) <= 256:
            assert row["tokens"] == len(by_id[row["id"]])
    card = card_of(out)
    padding = card.notes["padding"]["train"]
    assert len(stream) - padding == card.splits["train"].tokens == sum(map(len, by_id.values()))
    assert padding < 0.1 * len(stream)
    assert command(capsys, "verify", out).code == 0
    refused = build(capsys, "--input", corpus, "--out", tmp_path / "x", *words, "--eos", "none")
    assert refused.code == 2
    assert "Set --eos" in refused.err


@given(st.lists(st.integers(1, 50), max_size=60), st.integers(2, 20))
def test_best_fit_keeps_every_token_once_and_within_a_row(lengths: list[int], row: int) -> None:
    plan = best_fit(np.array(lengths, dtype=np.int64), row)
    taken = np.zeros(plan.rows * row, dtype=int)
    source = np.zeros(sum(lengths), dtype=int)
    for begin, target, tokens in zip(plan.source, plan.target, plan.tokens, strict=True):
        assert target // row == (target + tokens - 1) // row
        taken[target : target + tokens] += 1
        source[begin : begin + tokens] += 1
    assert (source == 1).all()
    assert taken.max(initial=0) <= 1
    assert plan.rows == 0 or taken.reshape(-1, row).any(axis=1).all()


@given(st.lists(st.tuples(st.integers(0, 6), st.booleans(), st.booleans()), max_size=20))
def test_borders_are_set_around_documents(documents: list[tuple[int, bool, bool]]) -> None:
    lengths = np.array([length for length, _, _ in documents], dtype=np.int64)
    ids = np.arange(lengths.sum(), dtype=np.uint16)
    before = np.array([900 if begins else -1 for _, begins, _ in documents], dtype=np.int64)
    after = np.array([901 if ends else -1 for _, _, ends in documents], dtype=np.int64)
    expected: list[int] = []
    first = 0
    for length, begins, ends in documents:
        expected += [900] * begins + list(range(first, first + length)) + [901] * ends
        first += length
    assert add_special_tokens(ids, lengths, before=before, after=after).tolist() == expected


@given(st.integers(0, 30), st.integers(0, 30))
def test_the_hash_of_rows_does_not_see_where_they_are_cut(first: int, second: int) -> None:
    rows = np.random.default_rng(0).integers(0, 60_000, (first + second, 5), dtype=np.uint16)
    whole = hash_rows(rows)
    assert hash_rows(rows[:first]).concat(hash_rows(rows[first:])) == whole
    assert RowsHash.from_plain(whole.to_plain()) == whole
    assert hash_rows(rows.astype(np.uint32)) == whole


def test_the_content_hash_sees_order_content_and_splits() -> None:
    rows = np.arange(12, dtype=np.uint16).reshape(4, 3)
    changed = rows.copy()
    changed[3, 2] += 1
    hashes = {
        content_hash({"train": hash_rows(rows)}, 2),
        content_hash({"train": hash_rows(rows[::-1])}, 2),
        content_hash({"train": hash_rows(changed)}, 2),
        content_hash({"validation": hash_rows(rows)}, 2),
        content_hash({"train": hash_rows(rows[:3])}, 2),
        content_hash({"train": hash_rows(rows)}, 3),
    }
    assert len(hashes) == 6


def test_the_content_hash_does_not_see_shards_and_compression(tmp_path: Path, capsys: Any) -> None:
    corpus = write_jsonl(tmp_path / "c.jsonl")
    hashes = set()
    for number, words in enumerate(
        (["--shard_size", 900], ["--compression", "none"], ["--compression", "zstd:19"])
    ):
        build(capsys, "--input", corpus, "--out", tmp_path / f"{number}", *words)
        hashes.add(card_of(tmp_path / f"{number}").content_hash)
    assert len(hashes) == 1
