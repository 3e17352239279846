"""What a failed conversion leaves behind, and what a card says of its inputs."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from corpora import Run, build, card_of, command, files_of, write_jsonl

from convert.inputs.input_files import portable_name
from stream_pretrain.storage.store import open_store


def bad_corpus(path: Path, *, good: int) -> Path:
    """A malformed line behind so many good records."""
    write_jsonl(path, good)
    path.write_bytes(path.read_bytes() + b"{]\n")
    return path


@pytest.mark.parametrize(
    "flags", [(), ("--validation", 5), ("--seq_len", 10**6), ("--validation", 10**6)]
)
def test_a_build_that_its_input_ends_leaves_nothing(
    flags: tuple[object, ...], tmp_path: Path, capsys: Any
) -> None:
    is_short = "--seq_len" in flags or flags == ("--validation", 10**6)
    path = tmp_path / "c.jsonl"
    if is_short:
        write_jsonl(path, 20)
    else:
        bad_corpus(path, good=20)
    out = tmp_path / "deep/er/out"
    assert build(capsys, "--input", path, "--out", out, *flags).code in (1, 2)
    assert not (tmp_path / "deep").exists()
    (tmp_path / "mine").mkdir()
    assert build(capsys, "--input", path, "--out", tmp_path / "mine", *flags).code in (1, 2)
    assert list((tmp_path / "mine").iterdir()) == []


def test_shards_of_an_unfinished_first_part_go_too(tmp_path: Path, capsys: Any) -> None:
    path = bad_corpus(tmp_path / "c.jsonl", good=9000)
    words = ("--shard_size", 2000, "--compression", "none")
    assert build(capsys, "--input", path, "--out", tmp_path / "out", *words).code == 1
    assert not (tmp_path / "out").exists()


def test_finished_parts_are_kept(tmp_path: Path, capsys: Any) -> None:
    path = bad_corpus(tmp_path / "c.jsonl", good=60)
    run = build(capsys, "--input", path, "--out", tmp_path / "out", "--part_size", 3000)
    assert run.code == 1
    assert (tmp_path / "out/.convert/job.json").exists()
    assert list((tmp_path / "out/.convert/receipts").iterdir())


def test_an_output_in_a_bucket_is_never_a_file(bucket: str) -> None:
    from convert.jobs.staging import check_output_path

    check_output_path(open_store(f"{bucket}/out"))
    assert open_store(bucket).list() == []


def corpus(folder: Path) -> Path:
    write_jsonl(folder / "corpus/a.jsonl", 60)
    write_jsonl(folder / "corpus/b.jsonl", 60, seed=1)
    (folder / "corpus/b.jsonl").write_bytes(
        (folder / "corpus/b.jsonl").read_bytes() + b'{"txt": 1}\n'
    )
    return folder / "corpus"


def convert(capsys: Any, source: Path, out: Path, *more: object) -> Run:
    words = ("--on_bad_record", "skip", "--validation", 0.2, *more)
    return build(capsys, "--input", source, "--out", out, *words)


def test_a_fresh_copy_of_the_inputs_gives_the_same_card(tmp_path: Path, capsys: Any) -> None:
    first = corpus(tmp_path / "here")
    second = Path(shutil.copytree(first, tmp_path / "there/corpus"))
    for path in second.iterdir():
        os.utime(path, (1, 1))
    for source, out in ((first, "one"), (second, "two")):
        assert convert(capsys, source, tmp_path / out).code == 0
    one, two = ((tmp_path / out / "dataset.json").read_text() for out in ("one", "two"))
    assert one == two
    assert str(tmp_path) not in one
    notes = card_of(tmp_path / "one").notes
    assert notes["bad_records"][0].startswith("corpus/b.jsonl, line 61: no key 'text'")
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")
    again = convert(capsys, second, tmp_path / "one")
    assert again.code == 0
    assert "already converted" in again.out


def test_changed_inputs_of_a_finished_dataset_are_told(tmp_path: Path, capsys: Any) -> None:
    source = corpus(tmp_path)
    assert convert(capsys, source, tmp_path / "out").code == 0
    data = (source / "a.jsonl").read_bytes()
    (source / "a.jsonl").write_bytes(data.replace(b"the", b"THE", 1))
    run = convert(capsys, source, tmp_path / "out")
    assert run.code == 2
    assert "inputs.corpus/a.jsonl: changed since (of the same size)" in run.err
    (source / "a.jsonl").write_bytes(data + b'{"text": "more"}\n')
    write_jsonl(source / "c.jsonl", 2)
    (source / "b.jsonl").unlink()
    run = convert(capsys, source, tmp_path / "out")
    assert f"changed since ({len(data):,} bytes then, {len(data) + 17:,} now)" in run.err
    assert "inputs.corpus/c.jsonl: was not there then" in run.err
    assert "inputs.corpus/b.jsonl: is not there now" in run.err


def test_a_touched_input_of_a_stopped_job_is_told_without_numbers(
    tmp_path: Path, capsys: Any
) -> None:
    path = bad_corpus(tmp_path / "c.jsonl", good=60)
    for moment in (1, 2):
        os.utime(path, (moment, moment))
        run = build(capsys, "--input", path, "--out", tmp_path / "out", "--part_size", 3000)
    assert run.code == 2
    assert "inputs.c.jsonl: changed since (of the same size)" in run.err
    assert "000000000" not in run.err


def test_a_tokenizer_is_named_without_its_directory(tmp_path: Path, capsys: Any) -> None:
    path = write_jsonl(tmp_path / "c.jsonl", 100)
    words = ("--input", path, "--out", tmp_path / "tokens", "--vocab_size", 300, "--quiet")
    assert command(capsys, "tokenizer", *words).code == 0
    tokenizer = ("--tokenizer", tmp_path / "tokens")
    assert build(capsys, "--input", path, "--out", tmp_path / "out", *tokenizer).code == 0
    settings = json.loads((tmp_path / "out/dataset.json").read_text())["settings"]
    assert (settings["tokenizer"], settings["input"]) == ("tokens", ["c.jsonl"])
    assert command(capsys, "verify", tmp_path / "out").code == 0


def test_an_input_is_recorded_without_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data/x").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "data/x")
    for value, recorded in (
        ("../raw/*.jsonl", "*.jsonl"),
        ("web=/d/c.txt", "web=c.txt"),
        ("..", "data"),
        (".", "x"),
        ("-", "-"),
        ("s3://bucket/a/b", "s3://bucket/a/b"),
        ("web=hf://datasets/a/b", "web=hf://datasets/a/b"),
    ):
        assert portable_name(value) == recorded
