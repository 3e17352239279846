"""What `verify` finds beside the shards' own bytes, and what it accepts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from corpora import Run, build, command, write_jsonl


@pytest.fixture
def out(tmp_path: Path, capsys: Any) -> Path:
    """A dataset of several shards."""
    corpus = write_jsonl(tmp_path / "c.jsonl", 120)
    words = ["--shard_size", 3000]
    assert build(capsys, "--input", corpus, "--out", tmp_path / "out", *words).code == 0
    return tmp_path / "out"


def verify(capsys: Any, out: Path, *flags: str) -> Run:
    run = command(capsys, "verify", out, *flags)
    assert "Traceback" not in run.err
    return run


def change_json(path: Path, change: Any) -> None:
    plain = json.loads(path.read_text())
    change(plain)
    path.write_text(json.dumps(plain))


def unpack_in_place(out: Path) -> list[Path]:
    """What StreamingDataset leaves where it reads a dataset in place."""
    twins = []
    for shard in sorted((out / "train").glob("*.mds.zstd")):
        twin = shard.with_suffix("")
        twin.write_bytes(zstandard.decompress(shard.read_bytes()))
        twins.append(twin)
    return twins


def test_decompressed_copies_beside_the_shards_are_accepted(out: Path, capsys: Any) -> None:
    assert len(unpack_in_place(out)) > 1
    assert verify(capsys, out).code == 0
    assert verify(capsys, out, "--fast").code == 0


def test_a_damaged_decompressed_copy_is_named(out: Path, capsys: Any) -> None:
    first, second, *_ = unpack_in_place(out)
    data = bytearray(first.read_bytes())
    data[-1] ^= 1
    first.write_bytes(data)
    second.write_bytes(second.read_bytes()[:-1])
    run = verify(capsys, out)
    assert run.code == 1
    assert f"{first}: xxh64 is" in run.out
    assert f"{second}: {len(second.read_bytes())} bytes, index.json says" in run.out
    assert run.out.count("Delete this decompressed copy.") == 2
    assert str(second) in verify(capsys, out, "--fast").out


@pytest.mark.parametrize(
    ("field", "value"), [("eos_id", 7), ("eos_id", None), ("bos_id", 3), ("vocab_size", 300)]
)
def test_special_ids_that_are_not_the_tokenizers_are_found(
    field: str, value: Any, out: Path, capsys: Any
) -> None:
    change_json(out / "dataset.json", lambda card: card.update({field: value}))
    run = verify(capsys, out)
    assert run.code == 1
    assert f"dataset.json: {field} is {value}, the tokenizer says" in run.out


def test_a_rule_that_the_tokenizer_cannot_follow_is_found(out: Path, capsys: Any) -> None:
    change_json(out / "dataset.json", lambda card: card["settings"].update(eos="<nothing>"))
    assert "--eos <nothing>: not a token" in verify(capsys, out).out


def test_any_flipped_byte_of_provenance_is_a_listed_fault(out: Path, capsys: Any) -> None:
    path = out / "train/documents/00000.parquet"
    whole = path.read_bytes()
    for place in range(4, len(whole), len(whole) // 25):
        data = bytearray(whole)
        data[place] ^= 0x55
        path.write_bytes(data)
        run = verify(capsys, out)
        assert run.code == 1
        assert f"- {path}: xxh3_128 is" in run.out


def test_damaged_provenance_of_older_cards_is_a_listed_fault(out: Path, capsys: Any) -> None:
    change_json(out / "dataset.json", lambda card: card["notes"].pop("documents"))
    path = out / "train/documents/00000.parquet"
    table = pq.read_table(path)
    pq.write_table(table.drop_columns(["offset"]), path)
    assert f"- {path}: damaged, no table of documents (no column 'offset')" in (
        verify(capsys, out).out
    )
    empty = table.set_column(4, "tokens", pa.array([None] * len(table), pa.int32()))
    pq.write_table(empty, path)
    assert "null values" in verify(capsys, out).out
    path.write_bytes(b"PAR1 nothing PAR1")
    assert f"- {path}: damaged, no table of documents" in verify(capsys, out).out
    assert f"{path}: damaged" in command(capsys, "inspect", out).err


def test_provenance_that_is_missing_or_too_much_is_named(out: Path, capsys: Any) -> None:
    path = out / "train/documents/00000.parquet"
    path.with_name("00001.parquet").write_bytes(path.read_bytes())
    path.unlink()
    said = verify(capsys, out).out
    assert f"{path}: absent" in said
    assert "00001.parquet: a table of documents that the card does not list" in said


@pytest.mark.parametrize("name", ["../../x.mds", "/etc/x.mds", "a/../b.mds", "..\\x.mds", ""])
def test_a_name_that_leads_out_of_the_dataset_is_refused(name: str, out: Path, capsys: Any) -> None:
    def lead_out(index: Any) -> None:
        index["shards"][1]["zip_data"]["basename"] = name

    change_json(out / "train/index.json", lead_out)
    run = verify(capsys, out)
    assert run.code == 1
    assert f"index.json: shard 1: {name!r} leads out of the dataset's directory" in run.err


@pytest.mark.parametrize(
    "change",
    [
        lambda entry: entry.pop("zip_data"),
        lambda entry: entry.update(raw_data=5),
        lambda entry: entry["raw_data"].update(bytes="many"),
        lambda entry: entry["raw_data"].update(basename=5),
        lambda entry: entry["zip_data"].update(hashes={"nohash": "00"}),
        lambda entry: entry.update(samples=None),
        lambda entry: entry.update(raw_data=None),
    ],
)
def test_a_malformed_entry_is_one_line(change: Any, out: Path, capsys: Any) -> None:
    change_json(out / "train/index.json", lambda index: change(index["shards"][0]))
    run = verify(capsys, out)
    assert run.code == 1
    assert "shard 0: malformed entry (" in run.err


def test_an_index_without_a_list_is_said_so(out: Path, capsys: Any) -> None:
    change_json(out / "train/index.json", lambda index: index.update(shards={}))
    assert "not an MDS index" in verify(capsys, out).err
