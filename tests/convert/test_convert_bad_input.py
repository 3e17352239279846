"""Bad input: a message with location, finding and remedy, and nothing published."""

from __future__ import annotations

import gzip
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from corpora import build, card_of, command, jsonl_bytes, records, texts, write_jsonl

from stream_pretrain.schema import CARD_NAME


def fails(capsys: Any, tmp_path: Path, *arguments: object, code: int = 1) -> str:
    out = tmp_path / "out"
    run = build(capsys, *arguments, "--out", out)
    assert run.code == code, run.err
    assert not list(out.rglob(CARD_NAME))
    assert not list(out.rglob("index.json"))
    assert "Traceback" not in run.err
    return run.err


def corpus(tmp_path: Path, data: bytes, name: str = "c.jsonl") -> Path:
    path = tmp_path / name
    path.write_bytes(data)
    return path


def test_no_such_file(tmp_path: Path, capsys: Any) -> None:
    message = fails(capsys, tmp_path, "--input", tmp_path / "absent.jsonl")
    assert "absent.jsonl: no such file" in message


def test_empty_input(tmp_path: Path, capsys: Any) -> None:
    message = fails(capsys, tmp_path, "--input", corpus(tmp_path, b""))
    assert "empty (1 file(s), 0 bytes)" in message


def test_a_directory_without_known_files(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "d").mkdir()
    corpus(tmp_path / "d", b"x", "picture.png")
    message = fails(capsys, tmp_path, "--input", tmp_path / "d")
    assert "1 file(s), none with a known ending" in message
    assert "--format" in message


def test_a_file_whose_ending_says_nothing(tmp_path: Path, capsys: Any) -> None:
    path = corpus(tmp_path, b"words " * 20, "c.dat")
    assert "--format text" in fails(capsys, tmp_path, "--input", path, code=2)
    run = build(capsys, "--input", path, "--format", "text", "--out", tmp_path / "out")
    assert run.code == 0


def test_two_files_with_one_label(tmp_path: Path, capsys: Any) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        corpus(tmp_path / name, b"text", "c.txt")
    inputs = ["--input", tmp_path / "a/c.txt", "--input", tmp_path / "b/c.txt"]
    assert "--input a=PATH" in fails(capsys, tmp_path, *inputs, code=2)


def test_no_input_at_all(tmp_path: Path, capsys: Any) -> None:
    assert "input" in fails(capsys, tmp_path, "--input", "[]", code=2)


def test_invalid_json_names_file_and_line(tmp_path: Path, capsys: Any) -> None:
    good = jsonl_bytes(records(40))
    path = corpus(tmp_path, good + b'{"text": "broken\n' + good)
    message = fails(capsys, tmp_path, "--input", path, "--part_size", 500)
    assert f"{path}, line 41: invalid JSON" in message
    assert "--on_bad_record skip" in message


def test_bad_records_are_counted_and_shown_when_skipped(tmp_path: Path, capsys: Any) -> None:
    good = jsonl_bytes(records(40))
    path = corpus(tmp_path, good + b"{]\n" + good + b'{"txt": 1}\n')
    for size in (500, 10**6):
        out = tmp_path / f"out-{size}"
        skip = ["--on_bad_record", "skip", "--part_size", size]
        assert build(capsys, "--input", path, "--out", out, *skip).code == 0
        notes = card_of(out).notes
        assert notes["tallies"]["bad_records"] == 2
        assert "line 41" in notes["bad_records"][0]
        assert "the keys are 'txt'" in notes["bad_records"][1]


def test_a_missing_text_key_names_the_keys_that_are_there(tmp_path: Path, capsys: Any) -> None:
    path = corpus(tmp_path, b'{"body": "x", "url": "y"}\n')
    message = fails(capsys, tmp_path, "--input", path)
    assert "line 1: no key 'text'; the keys are 'body', 'url'. Choose another --text_key" in message


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (b"[1, 2]", "there is a list there"),
        (b'{"text": 5}', "holds a int, not text"),
        (b'{"text": "\\ud83d x"}', "half a surrogate pair (U+D83D) at character 1"),
        (b"[" * 100_000, "invalid JSON"),
    ],
)
def test_records_without_usable_text(line: bytes, found: str, tmp_path: Path, capsys: Any) -> None:
    assert found in fails(capsys, tmp_path, "--input", corpus(tmp_path, line + b"\n"))


def test_invalid_utf8_in_json_lines(tmp_path: Path, capsys: Any) -> None:
    path = corpus(tmp_path, jsonl_bytes(records(3)) + b'{"text": "\xff"}\n')
    message = fails(capsys, tmp_path, "--input", path)
    assert "line 4: invalid UTF-8 (byte 0xff" in message
    assert "Convert the file to UTF-8" in message


def test_invalid_utf8_in_text(tmp_path: Path, capsys: Any) -> None:
    path = corpus(tmp_path, b"one\ntwo\nthr\xe9e\n", "c.txt")
    assert "c.txt, line 3: invalid UTF-8 (byte 0xe9 at offset 11)" in fails(
        capsys, tmp_path, "--input", path
    )


def test_invalid_utf8_on_standard_input(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for data, form, location in (
        (b'{"text": "\xff"}\n', "jsonl", "standard input, byte 0"),
        (b"abc\xff", "text", "byte 3"),
    ):
        monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(data)))
        assert location in fails(capsys, tmp_path, "--input", "-", "--format", form)
        monkeypatch.undo()


@pytest.mark.parametrize("name", ["c.jsonl.gz", "c.jsonl.zst"])
@pytest.mark.parametrize("share", [0.3, 0.99])
def test_truncated_compressed_files(name: str, share: float, tmp_path: Path, capsys: Any) -> None:
    data = jsonl_bytes(records(300))
    packed = gzip.compress(data) if name.endswith("gz") else zstandard.compress(data)
    path = corpus(tmp_path, packed[: int(len(packed) * share)], name)
    message = fails(capsys, tmp_path, "--input", path)
    assert f"{path}: damaged or truncated compressed file" in message
    assert "Fetch the file again" in message


@pytest.mark.parametrize("name", ["c.jsonl.gz", "c.jsonl.zst"])
def test_files_that_are_not_what_their_ending_says(name: str, tmp_path: Path, capsys: Any) -> None:
    path = corpus(tmp_path, b"plain text, not packed", name)
    assert "damaged or truncated" in fails(capsys, tmp_path, "--input", path)


def test_damaged_tables(tmp_path: Path, capsys: Any) -> None:
    for name in ("c.parquet", "c.arrow"):
        path = corpus(tmp_path, b"PAR1 but not really", name)
        assert f"{path}: not a readable" in fails(capsys, tmp_path, "--input", path)


def test_a_table_without_the_column_names_the_columns(tmp_path: Path, capsys: Any) -> None:
    table = pa.table({"body": ["x"], "url": ["y"]})
    pq.write_table(table, tmp_path / "c.parquet")
    message = fails(capsys, tmp_path, "--input", tmp_path / "c.parquet")
    assert "no column 'text'; the columns are 'body', 'url'" in message


def test_a_table_row_that_is_no_text_is_named(tmp_path: Path, capsys: Any) -> None:
    pq.write_table(pa.table({"text": [1, 2]}), tmp_path / "c.parquet")
    assert "row 0: 'text' holds a int" in fails(capsys, tmp_path, "--input", tmp_path / "c.parquet")


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"text,id\na,1\nb\n", "line 3: 1 fields, the header has 2"),
        (b'text,id\n"a,1\n', "malformed CSV"),
        (b"text,id\na,1\n\xff,2\n", "line 3: invalid UTF-8"),
        (b"body,id\na,1\n", "no column 'text'"),
    ],
)
def test_malformed_csv(data: bytes, found: str, tmp_path: Path, capsys: Any) -> None:
    path = corpus(tmp_path, data, "c.csv")
    assert found in fails(capsys, tmp_path, "--input", path)


def test_mds_shards_that_cannot_be_used(tmp_path: Path, capsys: Any) -> None:
    streaming = pytest.importorskip("streaming")
    folder = tmp_path / "mds"
    with streaming.MDSWriter(out=str(folder), columns={"body": "str"}) as writer:
        writer.write({"body": "text"})
    message = fails(capsys, tmp_path, "--input", folder)
    assert "no column 'text'; the columns are 'body'" in message
    shard = next(folder.glob("*.mds"))
    whole = shard.read_bytes()
    shard.write_bytes(whole.replace(b"text", b"t\xffxt"))
    message = fails(capsys, tmp_path, "--input", folder, "--text_key", "body")
    assert "sample 0: invalid UTF-8 in column 'body'" in message
    shard.write_bytes(whole[:-1])
    message = fails(capsys, tmp_path, "--input", folder, "--text_key", "body")
    assert "not a whole MDS shard" in message


def test_an_input_smaller_than_one_sample(tmp_path: Path, capsys: Any) -> None:
    path = corpus(tmp_path, b"tiny", "c.txt")
    message = fails(capsys, tmp_path, "--input", path)
    assert "train: the input gives 5 tokens, and one sample takes 33" in message
    assert "--seq_len" in message


def test_a_validation_share_that_chooses_nothing(tmp_path: Path, capsys: Any) -> None:
    path = write_jsonl(tmp_path / "c.jsonl", 20)
    message = fails(capsys, tmp_path, "--input", path, "--validation", "0.000001")
    assert "validation: the input gives 0 tokens" in message


@pytest.mark.parametrize("value", ["0", "1.5", "-1", "tail:2", "head:0.1", "some", "1/0"])
def test_malformed_validation(value: str, tmp_path: Path, capsys: Any) -> None:
    path = write_jsonl(tmp_path / "c.jsonl", 20)
    message = fails(capsys, tmp_path, "--input", path, f"--validation={value}", code=2)
    assert f"--validation {value}: must be `none`, a share" in message


def test_a_validation_number_that_leaves_no_training(tmp_path: Path, capsys: Any) -> None:
    path = write_jsonl(tmp_path / "c.jsonl", 20)
    message = fails(capsys, tmp_path, "--input", path, "--validation", 20, code=2)
    assert "the input has 20 documents" in message


def test_a_validation_number_of_standard_input(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(b"")))
    message = fails(capsys, tmp_path, "--input", "-", "--validation", 5, code=2)
    assert "Give a share" in message


def test_a_tail_of_a_file_whose_length_is_unknown(tmp_path: Path, capsys: Any) -> None:
    path = write_jsonl(tmp_path / "c.jsonl.gz", 20)
    message = fails(capsys, tmp_path, "--input", path, "--validation", "tail:0.1")
    assert "needs the length of the text" in message


def test_all_unknown_flags_are_reported_at_once(tmp_path: Path, capsys: Any) -> None:
    run = build(capsys, "--inptu", "x", "--out", tmp_path / "out", "--seq_length", 5)
    assert run.code == 2
    assert "--inptu" in run.err
    assert "--seq_length" in run.err


def test_hugging_face_inputs_without_a_network(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    message = fails(capsys, tmp_path, "--input", "hf://datasets/nobody/nothing/*.parquet")
    assert "cannot be fetched" in message
    assert "HF_TOKEN" in message
    message = fails(capsys, tmp_path, "--input", "hf://models/x", code=2)
    assert "must be hf://datasets/ORG/NAME" in message


def test_the_tokenizer_command_refuses_bad_input(tmp_path: Path, capsys: Any) -> None:
    path = corpus(tmp_path, "\n".join(texts(5)).encode(), "c.txt")
    small = command(
        capsys, "tokenizer", "--input", path, "--out", tmp_path / "t", "--vocab_size", 99
    )
    assert small.code == 2
    assert "must be at least 257" in small.err
    blank = corpus(tmp_path, b'{"text": ""}\n', "blank.jsonl")
    arguments = ["--out", tmp_path / "t", "--vocab_size", 300, "--quiet"]
    assert "no text in it" in command(capsys, "tokenizer", "--input", blank, *arguments).err
    assert command(capsys, "tokenizer", "--input", path, *arguments).code == 0
    again = command(capsys, "tokenizer", "--input", path, *arguments)
    assert again.code == 2
    assert "holds a tokenizer" in again.err
