"""Damaged tables, outputs that cannot be written, sizes without sense: one line, nothing made."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpora import Run, build, card_of, command, records, rows_of, stream_bytes, texts, write_jsonl

from convert.inputs.document import BadRecords, ReadOptions
from convert.inputs.input_files import find_inputs
from convert.inputs.read_task import READERS, read_task
from convert.inputs.tasks import plan_tasks
from convert.output.packing import ConcatPacker
from stream_pretrain.errors import DataError

SKIP = ("--on_bad_record", "skip")


def refuses(capsys: Any, tmp_path: Path, *words: object, code: int) -> str:
    run = build(capsys, *words, "--out", tmp_path / "out")
    assert run.code == code, run.err
    assert "Traceback" not in run.err
    assert not (tmp_path / "out/dataset.json").exists()
    return run.err


def plain_parquet(path: Path, rows: int = 200) -> bytes:
    """Uncompressed, several row groups, so that a byte of a text is a byte of the file."""
    table = pa.Table.from_pylist(records(rows))
    pq.write_table(table, path, row_group_size=50, compression="none", use_dictionary=False)
    return path.read_bytes()


def test_a_byte_of_a_parquet_text_that_is_no_utf8_names_file_group_and_row(
    tmp_path: Path, capsys: Any
) -> None:
    path = tmp_path / "c.parquet"
    data = plain_parquet(path)
    offset = data.index(records(200)[60]["text"].encode())
    path.write_bytes(data[:offset] + b"\xff" + data[offset + 1 :])
    said = refuses(capsys, tmp_path, "--input", path, code=1)
    assert f"{path}, row group 1, row 60: invalid UTF-8 in column 'text' (byte 0xff at 0)" in said
    assert build(capsys, "--input", path, "--out", tmp_path / "skipped", *SKIP).code == 0
    card = card_of(tmp_path / "skipped")
    assert card.splits["train"].documents == 199
    assert card.notes["tallies"]["bad_records"] == 1


def test_a_damaged_row_group_is_named_or_left_out(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "c.parquet"
    pq.write_table(pa.Table.from_pylist(records(200)), path, row_group_size=50)
    chunk = pq.ParquetFile(path).metadata.row_group(2).column(0)
    data = bytearray(path.read_bytes())
    begin = chunk.dictionary_page_offset or chunk.data_page_offset
    data[begin : begin + 12] = b"\xff" * 12
    path.write_bytes(data)
    said = refuses(capsys, tmp_path, "--input", path, code=1)
    assert f"{path}, row group 2, from row 100 on: damaged" in said
    run = build(capsys, "--input", path, "--id_key", "id", "--out", tmp_path / "skipped", *SKIP)
    assert run.code == 0, run.err
    assert card_of(tmp_path / "skipped").splits["train"].documents == 150
    ids = pq.read_table(tmp_path / "skipped/train/documents/00000.parquet")["id"].to_pylist()
    assert {"d99", "d150"} <= set(ids)


def test_no_flipped_byte_of_a_parquet_file_gives_a_traceback(tmp_path: Path) -> None:
    path = tmp_path / "c.parquet"
    pq.write_table(pa.Table.from_pylist(records(60)), path, row_group_size=20)
    whole, chance = path.read_bytes(), random.Random(5)
    for offset in [*chance.sample(range(len(whole)), 120), *range(len(whole) - 40, len(whole))]:
        data = bytearray(whole)
        data[offset] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        files = find_inputs([str(path)])
        for skip in (False, True):
            try:
                for task in plan_tasks(files, 10**6):
                    list(read_task(task, files, ReadOptions(), BadRecords(skip=skip)))
            except DataError as error:
                assert str(path) in str(error)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(5, "Input/output error"), "cannot be read ([Errno 5] Input/output error)"),
        (MemoryError(), "needs more memory than there is"),
        (pa.ArrowInvalid("odd\nbytes"), "cannot be read (odd bytes)"),
    ],
)
def test_what_a_reader_meets_names_the_file(
    error: Exception, said: str, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> Any:
        raise error
        yield

    monkeypatch.setitem(READERS, "jsonl", fail)  # type: ignore[arg-type]
    path = write_jsonl(tmp_path / "c.jsonl", 10)
    assert f"{path}: " in (message := refuses(capsys, tmp_path, "--input", path, code=1))
    assert said in message


def test_a_disk_that_fails_in_a_table_is_not_skipped(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain_parquet(tmp_path / "c.parquet")

    def fail(*_: object, **__: object) -> Any:
        raise OSError(5, "Input/output error")
        yield

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", fail)
    said = refuses(capsys, tmp_path, "--input", tmp_path / "c.parquet", *SKIP, code=1)
    assert "Input/output error" in said


def test_an_output_that_is_a_file_is_refused(tmp_path: Path, capsys: Any) -> None:
    path = write_jsonl(tmp_path / "c.jsonl", 10)
    (tmp_path / "file").write_text("words")
    for out in (tmp_path / "file", tmp_path / "file/below"):
        for words in (
            ("build", "--tokenizer", "byte", "--seq_len", 8),
            ("tokenizer", "--vocab_size", 300),
        ):
            run = command(capsys, *words, "--input", path, "--out", out, "--quiet")
            assert run.code == 2
            assert f"--out {out}: {tmp_path / 'file'} is a file. Name a directory" in run.err
    assert (tmp_path / "file").read_text() == "words"


def test_an_output_that_cannot_be_written_is_one_line(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: object, *_: object, **__: object) -> int:
        raise OSError(30, "Read-only file system", str(path))

    monkeypatch.setattr("convert.jobs.staging.os.open", refuse)
    path = write_jsonl(tmp_path / "c.jsonl", 10)
    said = refuses(capsys, tmp_path, "--input", path, code=1)
    assert f"--out {tmp_path / 'out'}: cannot be written (Read-only file system)" in said


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--seq_len", 99999999999), "Give a smaller --seq_len: a shard is below 4 GiB"),
        (("--seq_len", 10**8), "Give a --shard_size of at least 200000002, or a smaller --seq_len"),
        (("--shard_size", 1), "one sample takes 66 bytes, more than a shard"),
        (("--shard_size", "10TB"), "shard_size is '10TB': must be below 4 GiB"),
        (("--part_size", 1), "must be at least 64 bytes, since each part costs files"),
        (("--compression", "gzip"), "must be none, zstd or zstd:LEVEL with a level from 1 to 22"),
        (("--compression", "zstd:99"), "with a level from 1 to 22"),
        (("--compression", "zstd:-5"), "with a level from 1 to 22"),
        (("--max_chars", 5, "--min_chars", 9), "must be at least min_chars (9)"),
    ],
)
def test_sizes_without_sense_are_refused(
    flags: tuple[object, ...], said: str, tmp_path: Path, capsys: Any
) -> None:
    path = write_jsonl(tmp_path / "c.jsonl", 10)
    assert said in refuses(capsys, tmp_path, "--input", path, *flags, code=2)


def test_too_many_parts_are_refused(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("convert.build.MAX_TASKS", 3)
    path = write_jsonl(tmp_path / "c.jsonl", 100)
    said = refuses(capsys, tmp_path, "--input", path, "--part_size", 256, code=2)
    assert "3 is the most" in said


def test_the_largest_shard_takes_memory_by_its_data(tmp_path: Path, capsys: Any) -> None:
    packer = ConcatPacker(33, 10**9, np.dtype("<u2"))
    for _ in range(3):
        assert not list(packer.add([], np.ones(50_000, np.uint16), np.array([50_000])))
    packed = packer.finish()
    assert packed.rows.size + packed.tail.size == 150_000
    assert packed.rows.min() == packed.tail.min() == 1
    path = write_jsonl(tmp_path / "c.jsonl")
    for size in ("3.9GB", "32MiB"):
        words = ("--shard_size", size, "--out", tmp_path / size)
        assert build(capsys, "--input", path, *words).code == 0
    assert (rows_of(tmp_path / "3.9GB") == rows_of(tmp_path / "32MiB")).all()
    assert stream_bytes(tmp_path / "3.9GB")


def test_inputs_that_are_no_files_are_called_what_they_are(tmp_path: Path, capsys: Any) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "empty").mkdir()
    (tmp_path / "link.txt").symlink_to(tmp_path / "gone.txt")
    for name, said in (
        (tmp_path / "pipe.jsonl", "a pipe (FIFO), which cannot be read twice"),
        ("/dev/zero", "a device, which cannot"),
        (tmp_path / "empty", "a directory without files"),
        (tmp_path / "link.txt", f"a link to {tmp_path / 'gone.txt'}, which is not there"),
    ):
        message = refuses(capsys, tmp_path, "--input", name, code=1)
        assert f"--input {name}: {said}" in message


def test_a_dataset_is_no_text(tmp_path: Path, capsys: Any) -> None:
    path = write_jsonl(tmp_path / "c.jsonl")
    assert build(capsys, "--input", path, "--out", tmp_path / "made").code == 0
    said = refuses(capsys, tmp_path, "--input", tmp_path / "made", code=1)
    assert "a dataset (dataset.json lies in it): its shards hold token ids, not text" in said
    assert "--format mds" in said


def train(capsys: Any, tmp_path: Path, path: Path, size: int) -> Run:
    words = ("--out", tmp_path / "t", "--vocab_size", size, "--quiet", "--overwrite")
    return command(capsys, "tokenizer", "--input", path, *words)


def test_the_tokenizer_command_advises_only_what_it_can(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "c.txt"
    path.write_bytes(b"abc\xff")
    run = train(capsys, tmp_path, path, 300)
    assert run.code == 1
    assert "invalid UTF-8" in run.err
    assert "on_bad_record" not in run.err


def test_a_vocabulary_that_is_not_reached_is_told(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "c.txt"
    path.write_text("\n".join(texts(5)))
    run = train(capsys, tmp_path, path, 9000)
    assert run.code == 0
    assert "warning: --vocab_size 9000 was not reached" in run.err
    assert "warning" not in train(capsys, tmp_path, path, 270).err
