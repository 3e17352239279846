"""`verify`, `inspect`, and the command line itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
import zstandard
from corpora import build, card_of, command, write_jsonl

from convert.encoding.byte_tokenizer import END_OF_TEXT


@pytest.fixture
def out(tmp_path: Path, capsys: Any) -> Path:
    """A dataset of several shards in two splits."""
    corpus = write_jsonl(tmp_path / "c.jsonl")
    words = ["--shard_size", 3000, "--validation", 0.2]
    assert build(capsys, "--input", corpus, "--out", tmp_path / "out", *words).code == 0
    return tmp_path / "out"


def shard_of(out: Path) -> Path:
    return sorted((out / "train").glob("*.mds.zstd"))[1]


def rewrite_shard(out: Path, change: Any) -> None:
    """Change a shard's raw bytes and make its index entry fit, as a wrong writer would."""
    shard = shard_of(out)
    raw = bytearray(zstandard.decompress(shard.read_bytes()))
    raw = bytearray(change(raw))
    packed = zstandard.compress(bytes(raw))
    shard.write_bytes(packed)
    index = json.loads((out / "train/index.json").read_text())
    for entry in index["shards"]:
        if entry["zip_data"]["basename"] == shard.name:
            for key, data in (("raw_data", bytes(raw)), ("zip_data", packed)):
                entry[key]["bytes"] = len(data)
                entry[key]["hashes"] = {"xxh64": xxhash.xxh64_hexdigest(data)}
    (out / "train/index.json").write_text(json.dumps(index))


def verify(capsys: Any, out: Path, *flags: str, code: int = 1) -> str:
    run = command(capsys, "verify", out, *flags)
    assert run.code == code, run.out
    return run.out


def test_a_whole_dataset_is_whole(out: Path, capsys: Any) -> None:
    assert "whole (" in verify(capsys, out, code=0)
    plain = json.loads(verify(capsys, out, "--json", code=0))
    assert plain["is_whole"]
    assert plain["samples"] == sum(split.samples for split in card_of(out).splits.values())
    assert json.loads(verify(capsys, out, "--fast", "--json", code=0))["bytes_read"] == 0


def test_a_damaged_shard_is_named(out: Path, capsys: Any) -> None:
    shard = shard_of(out)
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    report = verify(capsys, out)
    assert f"{shard}: xxh64 is" in report
    assert report.count(".mds") == 1
    verify(capsys, out, "--fast", code=0)


def test_truncated_missing_and_stray_shards_are_named(out: Path, capsys: Any) -> None:
    first, second, third = sorted((out / "train").glob("*.mds.zstd"))[:3]
    first.write_bytes(first.read_bytes()[:-1])
    second.unlink()
    (out / "train/extra.mds").write_bytes(third.read_bytes())
    report = verify(capsys, out, "--fast")
    assert f"{first}: " in report
    assert "index.json says" in report
    assert f"{second}: absent" in report
    assert "train/extra.mds: a shard that index.json does not list" in report


def test_ids_beyond_the_vocabulary_are_named(out: Path, capsys: Any) -> None:
    rewrite_shard(out, lambda raw: raw[:-2] + b"\x00\x02")
    report = verify(capsys, out)
    assert "holds id 512, the vocabulary 257" in report


def test_content_that_is_not_the_cards_is_found(out: Path, capsys: Any) -> None:
    rewrite_shard(out, lambda raw: raw[:-2] + bytes([raw[-2] ^ 1, 0]))
    assert "content_hash is not that of the shards" in verify(capsys, out)


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: raw + b"\0",
        lambda raw: raw.replace(b"tokens", b"tokenz"),
        lambda raw: (
            raw[:4] + (int.from_bytes(raw[4:8], "little")).to_bytes(4, "little") * 2 + raw[12:]
        ),
        lambda raw: b"\xff\xff\xff\x7f" + raw[4:],
        lambda raw: raw.replace(b'"column_sizes": [66]', b'"column_sizes": [67]'),
    ],
)
def test_malformed_shards_are_named(change: Any, out: Path, capsys: Any) -> None:
    rewrite_shard(out, change)
    assert "no MDS shard of this dataset" in verify(capsys, out)


def test_a_card_that_counts_wrongly_is_found(out: Path, capsys: Any) -> None:
    card = json.loads((out / "dataset.json").read_text())
    card["splits"]["train"]["samples"] += 1
    card["splits"]["train"]["tokens"] += 1
    (out / "dataset.json").write_text(json.dumps(card))
    report = verify(capsys, out)
    assert "samples, the shards hold" in report
    assert "tokens, samples and dropped tokens make" in report


def test_an_index_that_counts_wrongly_is_found(out: Path, capsys: Any) -> None:
    index = json.loads((out / "train/index.json").read_text())
    index["shards"][0]["samples"] += 1
    (out / "train/index.json").write_text(json.dumps(index))
    assert "samples, index.json says" in verify(capsys, out)


def test_provenance_that_does_not_cover_the_samples_is_found(out: Path, capsys: Any) -> None:
    path = out / "train/documents/00000.parquet"
    table = pq.read_table(path)
    pq.write_table(pa.concat_tables([table[:5], table[6:]]), path)
    assert "00000.parquet: xxh3_128 is" in verify(capsys, out)
    card = json.loads((out / "dataset.json").read_text())
    del card["notes"]["documents"]  # as older cards are
    (out / "dataset.json").write_text(json.dumps(card))
    report = verify(capsys, out)
    assert "row 5 does not follow the one before it" in report
    assert "the samples hold" in report


def test_a_changed_tokenizer_is_found(out: Path, capsys: Any) -> None:
    (out / "tokenizer/tokenizer.json").write_text("{}")
    assert "fingerprint" in verify(capsys, out)
    (out / "tokenizer/tokenizer.json").unlink()
    assert "tokenizer.json: absent" in verify(capsys, out)


def test_what_is_no_dataset_is_said_so(tmp_path: Path, out: Path, capsys: Any) -> None:
    for name in ("verify", "inspect"):
        run = command(capsys, name, tmp_path / "nothing")
        assert run.code == 1
        assert "no dataset.json, so no dataset" in run.err
    (out / "train/index.json").write_text("[]")
    assert "not an MDS index" in command(capsys, "verify", out).err


def test_inspect_shows_counts_lengths_and_samples(out: Path, capsys: Any) -> None:
    run = command(capsys, "inspect", out, "--samples", 3)
    assert run.code == 0
    for words in (
        "content hash",
        "tokens by source",
        "c.jsonl",
        "█",
        "median",
        "sample 2 of train",
    ):
        assert words in run.out
    plain = json.loads(command(capsys, "inspect", out, "--json", "--split", "validation").out)
    assert len(plain["samples"]) == 2
    documents = card_of(out).splits["validation"].documents
    assert sum(item["documents"] for item in plain["lengths"]) == documents


def test_inspect_marks_where_documents_end(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "c.txt").write_text("one|two|three and more")
    words = ["--separator", "|", "--seq_len", 7]
    build(capsys, "--input", tmp_path / "c.txt", "--out", tmp_path / "out", *words)
    run = command(capsys, "inspect", tmp_path / "out", "--samples", 1)
    assert "one⏎END⏎two⏎END⏎" in run.out
    assert END_OF_TEXT not in run.out


def test_inspect_refuses_what_it_cannot_show(out: Path, capsys: Any) -> None:
    run = command(capsys, "inspect", out, "--split", "test")
    assert "no split 'test'. Choose one of train, validation" in run.err
    first = sorted((out / "train").glob("*.mds.zstd"))[0]
    first.write_bytes(zstandard.compress(b"nothing"))
    run = command(capsys, "inspect", out)
    assert run.code == 1
    assert "convert-mds verify" in run.err


def test_help_and_bad_flags_answer_without_heavy_imports() -> None:
    script = (
        "import sys\n"
        "from convert.cli import main\n"
        "for words in ([], ['--help'], ['--version'], ['build', '--seq_len', 'x'], ['nonsense']):\n"
        "    main(words)\n"
        "try:\n"
        "    main(['build', '--help'])\n"
        "except SystemExit as done:\n"
        "    assert done.code == 0\n"
        "heavy = {'torch', 'streaming', 'litgpt', 'transformers', 'pyarrow', 'numpy'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stderr.splitlines()[-1] == "[]"
    assert "--tokenizer" in done.stdout


def test_a_conversion_does_not_import_torch_or_streaming(tmp_path: Path) -> None:
    corpus = write_jsonl(tmp_path / "c.jsonl")
    words = ["build", "--input", str(corpus), "--out", str(tmp_path / "out"), "--workers", "1"]
    words += ["--tokenizer", "byte", "--seq_len", "8", "--quiet"]
    script = (
        f"import sys\nfrom convert.cli import main\nassert main({words!r}) == 0\n"
        "heavy = {'torch', 'streaming', 'lightning', 'litgpt', 'transformers'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stderr.splitlines()[-1] == "[]"


def test_exit_codes_and_usage(capsys: Any) -> None:
    assert command(capsys).code == 2
    assert command(capsys, "--help").code == 0
    unknown = command(capsys, "biuld")
    assert unknown.code == 2
    assert "no such command" in unknown.err
    for name in ("verify", "inspect"):
        missing = command(capsys, name, "--json")
        assert missing.code == 2
        assert f"convert-mds {name} DATASET" in missing.err
        with pytest.raises(SystemExit):
            command(capsys, name, "--help")


def test_a_configuration_file_is_the_same_as_flags(tmp_path: Path, capsys: Any) -> None:
    corpus = write_jsonl(tmp_path / "c.jsonl")
    flags = ["--input", corpus, "--tokenizer", "byte", "--seq_len", 16, "--part_size", "2KiB"]
    run = command(capsys, "build", *flags, "--out", tmp_path / "a", "--print_config")
    (tmp_path / "c.yaml").write_text(run.out)
    assert not (tmp_path / "a").exists()
    build(capsys, *flags, "--out", tmp_path / "a")
    run = command(
        capsys,
        "build",
        "--config",
        tmp_path / "c.yaml",
        "--out",
        tmp_path / "b",
        "--json",
        "--quiet",
    )
    assert json.loads(run.out)["content_hash"] == card_of(tmp_path / "a").content_hash
    shown = command(
        capsys, "tokenizer", *flags[:2], "--out", "x", "--vocab_size", 300, "--print_config"
    )
    assert "vocab_size: 300" in shown.out


def test_progress_is_shown_on_standard_error(tmp_path: Path, capsys: Any) -> None:
    corpus = write_jsonl(tmp_path / "c.jsonl")
    words = ["--input", corpus, "--out", tmp_path / "out", "--tokenizer", "byte", "--seq_len", 16]
    run = command(capsys, "build", *words, "--workers", 1)
    assert "documents" in run.err
    assert "tokens/s" in run.err
    assert "content hash" in run.out
