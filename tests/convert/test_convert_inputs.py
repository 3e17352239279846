"""Every kind of input gives the same samples, and its documents the ids that they should have."""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpora import (
    build,
    card_of,
    jsonl_bytes,
    records,
    rows_of,
    stream_bytes,
    texts,
    write_jsonl,
)

from convert.inputs.document import BadRecords, ReadOptions
from convert.inputs.input_files import find_inputs
from convert.inputs.list_files import natural_key
from convert.inputs.mds_reader import read_mds
from convert.inputs.read_task import read_task
from convert.inputs.tasks import ByteRange, plan_tasks
from stream_pretrain.errors import ConfigError
from stream_pretrain.storage.store import open_store


def expected_stream(rows: list[dict[str, Any]], seq_len: int = 32) -> bytes:
    data = b"".join(row["text"].encode() + b"\0" for row in rows)
    return data[: len(data) // (seq_len + 1) * (seq_len + 1)]


@pytest.fixture
def wanted() -> bytes:
    return expected_stream(records(300))


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz", "jsonl.zst", "ndjson", "json"])
def test_json_lines_in_every_compression_give_the_documents_in_order(
    ending: str, tmp_path: Path, capsys: Any, wanted: bytes
) -> None:
    corpus = write_jsonl(tmp_path / f"c.{ending}")
    assert build(capsys, "--input", corpus, "--out", tmp_path / "out").code == 0
    assert stream_bytes(tmp_path / "out") == wanted


def test_parquet_arrow_and_csv_give_the_same_documents(
    tmp_path: Path, capsys: Any, wanted: bytes
) -> None:
    rows = records(300)
    table = pa.Table.from_pylist(rows)
    pq.write_table(table, tmp_path / "c.parquet", row_group_size=70)
    for name, make in (("stream", pa.ipc.new_stream), ("file", pa.ipc.new_file)):
        path = str(tmp_path / f"{name}.arrow")
        with pa.OSFile(path, "wb") as sink, make(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=50)
    text = io.StringIO()
    writer_csv = csv.DictWriter(text, ["id", "text"])
    writer_csv.writeheader()
    writer_csv.writerows(rows)
    (tmp_path / "c.csv").write_text("\ufeff" + text.getvalue(), encoding="utf-8", newline="")
    for name in ("c.parquet", "stream.arrow", "file.arrow", "c.csv"):
        out = tmp_path / f"out-{name}"
        run = build(capsys, "--input", tmp_path / name, "--out", out, "--id_key", "id")
        assert run.code == 0, run.err
        assert stream_bytes(out) == wanted, name


def test_a_saved_hugging_face_dataset_is_read_as_a_directory(
    tmp_path: Path, capsys: Any, wanted: bytes
) -> None:
    saved = tmp_path / "saved"
    saved.mkdir()
    table = pa.Table.from_pylist(records(300))
    for number, begin in enumerate((0, 100, 200)):
        name = saved / f"data-{number:05}-of-00003.arrow"
        with pa.OSFile(str(name), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table.slice(begin, 100))
    for name in ("dataset_info.json", "state.json"):
        (saved / name).write_text("{}")
    assert build(capsys, "--input", saved, "--out", tmp_path / "out").code == 0
    assert stream_bytes(tmp_path / "out") == wanted


def test_existing_mds_shards_with_a_text_column_are_read(
    tmp_path: Path, capsys: Any, wanted: bytes
) -> None:
    streaming = pytest.importorskip("streaming")
    columns = {"text": "str", "id": "str", "score": "float64"}
    with streaming.MDSWriter(
        out=str(tmp_path / "mds"), columns=columns, compression="zstd", size_limit=4000
    ) as writer:
        for row in records(300):
            writer.write({**row, "score": 0.5})
    out = tmp_path / "out"
    run = build(capsys, "--input", tmp_path / "mds", "--out", out, "--id_key", "id")
    assert run.code == 0, run.err
    assert stream_bytes(out) == wanted
    assert len(card_of(out).sources) > 3


def test_standard_input_is_read_from_front_to_back(
    tmp_path: Path, capsys: Any, wanted: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(jsonl_bytes(records(300))))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert build(capsys, "--input", "-", "--out", tmp_path / "out").code == 0
    assert stream_bytes(tmp_path / "out") == wanted
    assert card_of(tmp_path / "out").sources[0].name == "stdin"


def test_a_directory_is_read_in_natural_order_and_a_glob_chooses(
    tmp_path: Path, capsys: Any
) -> None:
    for name, text in (("b10.txt", "ten " * 20), ("b2.txt", "two " * 20), ("a/x.txt", "sub " * 20)):
        (tmp_path / "corpus" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "corpus" / name).write_text(text)
    (tmp_path / "corpus" / "picture.png").write_bytes(b"\x89PNG")
    build(capsys, "--input", tmp_path / "corpus", "--out", tmp_path / "all", "--seq_len", 8)
    names = [source.name for source in card_of(tmp_path / "all").sources]
    assert names == ["corpus/a/x.txt", "corpus/b2.txt", "corpus/b10.txt"]
    build(capsys, "--input", tmp_path / "corpus/b*.txt", "--out", tmp_path / "some", "--seq_len", 8)
    assert [source.name for source in card_of(tmp_path / "some").sources] == ["b2.txt", "b10.txt"]


def test_a_named_source_is_part_of_the_ids(tmp_path: Path, capsys: Any) -> None:
    corpus = write_jsonl(tmp_path / "c.jsonl", 5)
    build(capsys, "--input", f"books={corpus}", "--out", tmp_path / "out", "--seq_len", 4)
    table = pq.read_table(tmp_path / "out/train/documents/00000.parquet")
    assert table["id"][0].as_py() == "books/c.jsonl:0"
    assert set(table["source"].to_pylist()) == {"books/c.jsonl"}


def test_nested_keys_and_keys_with_dots_are_found(tmp_path: Path, capsys: Any) -> None:
    rows = [{"meta": {"body": "nested " * 9}, "a.b": {"id": i}} for i in range(3)]
    (tmp_path / "c.jsonl").write_bytes(jsonl_bytes(rows))
    out = tmp_path / "out"
    arguments = ["--input", tmp_path / "c.jsonl", "--text_key", "meta.body", "--seq_len", 8]
    assert build(capsys, *arguments, "--out", out).code == 0
    assert stream_bytes(out).startswith(b"nested nested")
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "c.parquet")
    arguments[1] = tmp_path / "c.parquet"
    assert build(capsys, *arguments, "--out", tmp_path / "out2").code == 0
    assert np.array_equal(rows_of(out), rows_of(tmp_path / "out2"))


def test_empty_and_null_documents_are_counted_and_left_out(tmp_path: Path, capsys: Any) -> None:
    rows: list[dict[str, Any]] = [{"text": text} for text in ("", None, "x" * 50, "ab", "y" * 90)]
    (tmp_path / "c.jsonl").write_bytes(jsonl_bytes(rows) + b"\n  \n")
    limits = ["--min_chars", 3, "--max_chars", 80, "--seq_len", 8]
    assert (
        build(capsys, "--input", tmp_path / "c.jsonl", "--out", tmp_path / "out", *limits).code == 0
    )
    card = card_of(tmp_path / "out")
    assert card.notes["tallies"] == {"empty": 2, "too_short": 1, "too_long": 1}
    assert card.splits["train"].documents == 1


def test_a_text_file_is_one_document_or_is_split_by_a_separator(
    tmp_path: Path, capsys: Any
) -> None:
    corpus = tmp_path / "c.txt"
    corpus.write_text("first\n---\nsecond text\n---\nthird, the last one", newline="")
    build(capsys, "--input", corpus, "--out", tmp_path / "one", "--seq_len", 4)
    assert card_of(tmp_path / "one").splits["train"].documents == 1
    files = find_inputs([str(corpus)])
    for size in range(1, 60):
        found = [
            document.text
            for task in plan_tasks(files, size)
            for document in read_task(task, files, ReadOptions(separator="\n---\n"), BadRecords())
        ]
        assert found == ["first", "second text", "third, the last one"], size
    split = ["--separator", "\n---\n", "--seq_len", 4]
    build(capsys, "--input", corpus, "--out", tmp_path / "out", *split)
    assert stream_bytes(tmp_path / "out") == b"first\0second text\0third, the last one\0"[:35]


def test_a_byte_order_mark_does_not_break_the_first_line(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "c.jsonl").write_bytes(b"\xef\xbb\xbf" + jsonl_bytes([{"text": "t" * 60}]))
    run = build(capsys, "--input", tmp_path / "c.jsonl", "--out", tmp_path / "out")
    assert run.code == 0, run.err


def test_every_part_size_gives_each_document_once(tmp_path: Path) -> None:
    corpus = write_jsonl(tmp_path / "c.jsonl", 50)
    files = find_inputs([str(corpus)])
    how = ReadOptions(id_key="id")
    for size in [*range(20, 400, 7), 10_000]:
        ids = [
            document.id
            for task in plan_tasks(files, size)
            for document in read_task(task, files, how, BadRecords())
        ]
        assert ids == [f"d{i}" for i in range(50)], size


def test_pieces_of_a_long_text_join_to_the_text(tmp_path: Path) -> None:
    text = "".join(f"line {i} é\n" for i in range(400))
    (tmp_path / "c.txt").write_text(text, newline="")
    files = find_inputs([str(tmp_path / "c.txt")])
    for size in (30, 100, 999, 10_000):
        pieces = [
            document
            for task in plan_tasks(files, size)
            for document in read_task(task, files, ReadOptions(), BadRecords())
        ]
        assert "".join(piece.text or "" for piece in pieces) == text
        assert [piece.has_start for piece in pieces] == [True] + [False] * (len(pieces) - 1)
        assert [piece.has_end for piece in pieces] == [False] * (len(pieces) - 1) + [True]
        assert {piece.id for piece in pieces} == {"c.txt"}


def test_small_files_share_a_part_and_large_ones_are_cut(tmp_path: Path) -> None:
    for number in range(10):
        (tmp_path / f"{number}.txt").write_text("x" * 10)
    (tmp_path / "big.txt").write_text("y\n" * 50)
    tasks = plan_tasks(find_inputs([str(tmp_path)]), 40)
    assert [task.size for task in tasks] == [40, 40, 20, 40, 40, 20]
    assert [len(task.ranges) for task in tasks] == [4, 4, 2, 1, 1, 1]


def test_numbers_in_names_sort_as_numbers() -> None:
    names = ["part-10", "part-2", "part-1", "part-a"]
    assert sorted(names, key=natural_key) == ["part-1", "part-2", "part-10", "part-a"]


def test_an_mds_shard_is_read_by_its_own_description(tmp_path: Path) -> None:
    streaming = pytest.importorskip("streaming")
    with streaming.MDSWriter(out=str(tmp_path / "m"), columns={"text": "str"}) as writer:
        for text in texts(5):
            writer.write({"text": text})
    file = find_inputs([str(tmp_path / "m")])[0]
    read = read_mds(ByteRange(file=0, start=0, end=None), file, ReadOptions(), BadRecords())
    assert [document.text for document in read] == texts(5)


def test_no_inputs_are_no_job() -> None:
    with pytest.raises(ConfigError, match="--input is missing"):
        find_inputs([])


def test_a_hugging_face_dataset_is_fetched_and_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_jsonl(tmp_path / "data/train-0.jsonl", 5)
    write_jsonl(tmp_path / "data/test-0.jsonl", 5)
    asked: dict[str, Any] = {}

    def fetch(name: str, **options: Any) -> str:
        asked.update(options, name=name)
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    files = find_inputs(["hf://datasets/org/web@v1/data/train-*.jsonl"])
    assert [file.label for file in files] == ["train-0.jsonl"]
    assert (asked["name"], asked["revision"]) == ("org/web", "v1")
    assert asked["allow_patterns"] == "data/train-*.jsonl"
    assert len(find_inputs(["web=hf://datasets/org/web"])) == 2


def test_tables_are_read_from_a_bucket(bucket: str, tmp_path: Path, capsys: Any) -> None:
    pq.write_table(pa.Table.from_pylist(records(300)), tmp_path / "c.parquet", row_group_size=50)
    open_store(bucket).write("c.parquet", (tmp_path / "c.parquet").read_bytes())
    run = build(capsys, "--input", f"{bucket}/c.parquet", "--out", tmp_path / "out")
    assert run.code == 0, run.err
    assert stream_bytes(tmp_path / "out") == expected_stream(records(300))
    run = build(capsys, "--input", f"{bucket}/d.parquet", "--out", tmp_path / "none")
    assert run.code == 1
    assert "no such file, directory or match" in run.err


def test_repeated_ids_are_counted_across_parts(tmp_path: Path, capsys: Any) -> None:
    rows = records(100)
    (tmp_path / "c.jsonl").write_bytes(jsonl_bytes([*rows, *rows[:7], rows[0]]))
    words = ["--input", tmp_path / "c.jsonl", "--id_key", "id", "--validation", 0.3]
    for size in (2000, 10**6):
        out = tmp_path / f"{size}"
        assert build(capsys, *words, "--out", out, "--part_size", size).code == 0
        assert card_of(out).notes["tallies"] == {"repeated_ids": 8}
        assert not (out / ".convert").exists()
    run = build(capsys, *words[:2], "--out", tmp_path / "places")
    assert run.code == 0
    assert card_of(tmp_path / "places").notes["tallies"] == {}
