"""A small dataset and a process that forks runs, made once for all tests that train."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from forked_runs import ForkedRuns

WORDS = [
    "the",
    "cat",
    "sat",
    "on",
    "a",
    "mat",
    "and",
    "ate",
    "its",
    "hat",
    "while",
    "rain",
    "fell",
    "over",
    "old",
    "grey",
    "stone",
    "walls",
]


def text_of(number: int, words: int = 60) -> str:
    """A document that is a function of its number."""
    chosen = random.Random(number)
    return " ".join(chosen.choice(WORDS) for _ in range(words))


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Byte-level dataset of seq_len 16: a few hundred samples in several shards, with a validation
    split.
    """
    from convert.cli import main

    root = tmp_path_factory.mktemp("dataset")
    source = root / "corpus.jsonl"
    lines = [json.dumps({"id": f"doc-{n}", "text": text_of(n, words=5 + n % 9)}) for n in range(60)]
    source.write_text("\n".join(lines) + "\n")
    out = root / "tiny"
    arguments = ["build", "--input", str(source), "--out", str(out), "--tokenizer", "byte"]
    arguments += ["--seq_len", "16", "--validation", "0.1", "--id_key", "id"]
    assert main([*arguments, "--shard_size", "1024"]) == 0
    return out


@pytest.fixture(scope="session")
def forked_runs() -> Iterator[ForkedRuns]:
    """Forks runs of `stream-pretrain`."""
    with ForkedRuns() as process:
        yield process
