"""Small corpora and a way to convert them. In: a directory. Out: files, exit codes, rows."""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from convert.checks.read_dataset import read_card, read_index, read_rows
from convert.cli import main
from convert.output.content_hash import hash_rows
from stream_pretrain.schema import Card
from stream_pretrain.storage.store import open_store

WORDS = (
    *("the", "a", "stream", "of", "shards", "naïve", "tokens", "42", "中文", "end\nnew"),
    *("if", "x", "==", "y:", "return", "☃", "don't"),
)


@dataclass(frozen=True, kw_only=True)
class Run:
    """The exit code and output of a run of `convert-mds` in this process."""

    code: int
    out: str
    err: str


def texts(number: int, *, seed: int = 0, longest: int = 60) -> list[str]:
    """So many texts of up to `longest` words, always the same."""
    chance = random.Random(seed)
    return [" ".join(chance.choices(WORDS, k=chance.randint(1, longest))) for _ in range(number)]


def records(number: int, *, seed: int = 0) -> list[dict[str, Any]]:
    """Texts with ids."""
    return [{"text": text, "id": f"d{i}"} for i, text in enumerate(texts(number, seed=seed))]


def jsonl_bytes(rows: list[dict[str, Any]]) -> bytes:
    """JSON Lines."""
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def write_jsonl(path: Path, number: int = 300, *, seed: int = 0) -> Path:
    """A corpus; compressed as the ending says, in several members or frames."""
    data = jsonl_bytes(records(number, seed=seed))
    half = len(data) // 2
    if path.suffix == ".gz":
        data = gzip.compress(data[:half]) + gzip.compress(data[half:])
    elif path.suffix == ".zst":
        data = zstandard.compress(data[:half]) + zstandard.compress(data[half:])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def build(capsys: Any, *arguments: object, workers: int = 1) -> Run:
    """`convert-mds build` with the byte tokenizer and short samples unless told otherwise."""
    given = [str(argument) for argument in arguments]
    for flag, value in (("--tokenizer", "byte"), ("--seq_len", "32")):
        if flag not in given:
            given += [flag, value]
    return command(capsys, "build", *given, "--quiet", "--workers", workers)


def command(capsys: Any, *arguments: object) -> Run:
    """Any command, in this process."""
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return Run(code=code, out=captured.out, err=captured.err)


def process(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Any command, in a process of its own."""
    words = [sys.executable, "-m", "convert.cli", *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, check=False, **options)


def wait_until(condition: Callable[[], bool], *, seconds: float = 120) -> None:
    """Poll a condition until it holds; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds} seconds in vain")
        time.sleep(0.005)


def card_of(out: object) -> Card:
    """The card of a dataset."""
    return read_card(open_store(str(out)))


def rows_of(out: object, split: str = "train") -> NDArray[Any]:
    """All rows of a split, in order."""
    store = open_store(str(out))
    card = read_card(store)
    return np.concatenate(
        [read_rows(store, split, entry, card) for entry in read_index(store, split)]
    )


def stream_bytes(out: object, split: str = "train") -> bytes:
    """The text of a split that the byte tokenizer made, end-of-text as NUL."""
    ids = rows_of(out, split).reshape(-1)
    return bytes(np.where(ids == 256, 0, ids).astype(np.uint8))


def content_of(out: object) -> dict[str, Any]:
    """Rows and their hash, apart from file names."""
    return {name: hash_rows(rows_of(out, name)) for name in card_of(out).splits}


def files_of(out: Path) -> dict[str, bytes]:
    """Every file of a local dataset but the card, whose paths differ."""
    return {
        str(path.relative_to(out)): path.read_bytes()
        for path in sorted(out.rglob("*"))
        if path.is_file() and path.name != "dataset.json"
    }
