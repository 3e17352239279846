"""Validation means something: the same samples every time and everywhere, none twice."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zstandard
from forked_runs import ForkedRuns
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from small import fit_arguments

from convert.cli import main as convert
from stream_pretrain.checkpoint.read_model import read_model_state
from stream_pretrain.config.sections import ModelConfig
from stream_pretrain.data.validation_set import ValidationSet
from stream_pretrain.model.registry import build_model
from stream_pretrain.observe.jsonl import read_events
from stream_pretrain.schema import Card, World
from stream_pretrain.storage.store import open_store


class Rows:
    """A source whose row n is full of n; remembers what was asked for."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.asked: list[int] = []

    def __getitem__(self, index: int) -> tuple[int, NDArray[Any]]:
        assert 0 <= index < self.count
        self.asked.append(index)
        return index, np.full(5, index, np.uint16)


def counted_rows(held: ValidationSet) -> tuple[list[int], int]:
    """(numbers of the rows that count, batches) of one evaluation."""
    found, batches = [], 0
    for ids, counted in held.batches():
        batches += 1
        found += ids[:counted, 0].tolist()
    return found, batches


@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 6))
def test_ranks_together_have_every_sample_once_in_as_many_batches(
    samples: int, world_size: int, micro_batch: int
) -> None:
    parts = [
        counted_rows(
            ValidationSet(
                Rows(samples),
                samples=samples,
                micro_batch=micro_batch,
                world=World(rank=rank, world_size=world_size, local_world_size=world_size),
            )
        )
        for rank in range(world_size)
    ]
    assert Counter(row for rows, _ in parts for row in rows) == Counter(range(samples))
    assert len({batches for _, batches in parts}) == 1


def test_a_second_evaluation_reads_nothing_and_gives_the_same_batches() -> None:
    rows = Rows(10)
    held = ValidationSet(rows, samples=7, micro_batch=2, world=World())
    first = [(ids.clone(), counted) for ids, counted in held.batches()]
    assert rows.asked == list(range(7))
    for (left, here), (right, there) in zip(first, held.batches(), strict=True):
        assert torch.equal(left, right)
        assert here == there
    assert rows.asked == list(range(7))


def test_a_set_of_no_samples_is_refused() -> None:
    with pytest.raises(ValueError, match="samples must be at least 1, got 0"):
        ValidationSet(Rows(1), samples=0, micro_batch=1, world=World())


# ---- in real runs


@pytest.fixture(scope="module")
def tiny_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset whose validation split has three samples: fewer than four ranks."""
    root = tmp_path_factory.mktemp("tiny_set")
    (root / "a.txt").write_text("to be or not to be, that is the question of it all ... " * 4)
    arguments = ["build", "--input", str(root / "a.txt"), "--out", str(root / "tiny")]
    arguments += ["--tokenizer", "byte", "--seq_len", "16", "--validation", "tail:0.25"]
    assert convert(arguments) == 0
    return root / "tiny"


def settings(dataset: Path, tiny_set: Path) -> dict[str, object]:
    """Eleven steps with three validation sets: one of training rows, one very small."""
    sets = [
        {"local": str(dataset), "name": "own"},
        {"local": str(dataset), "name": "seen", "split": "train"},
        {"local": str(tiny_set), "name": "tiny"},
    ]
    return {
        "data.validation": sets,
        "stop.max_steps": 11,
        "evaluation.every": 5,
        "evaluation.batches": 2,
        "evaluation.at_start": True,
        "evaluation.at_end": True,
        "schedule.kind": "constant",
    }


def evaluated(run: Path) -> dict[tuple[int, str], dict[str, Any]]:
    """(step, set) -> evaluation event."""
    events = read_events(run / "metrics.jsonl")
    return {(e["step"], e["set"]): e for e in events if e["event"] == "evaluation"}


@pytest.fixture(scope="module")
def alone(
    forked_runs: ForkedRuns, dataset: Path, tiny_set: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The run in one process."""
    root = tmp_path_factory.mktemp("alone")
    arguments = fit_arguments(dataset, root / "run", **settings(dataset, tiny_set))
    done = forked_runs.run(arguments, root / "log")
    assert done.code == 0, done.log
    return root / "run"


def validation_rows(dataset: Path, split: str) -> NDArray[Any]:
    """The rows of a split in the order of its shards, read by hand."""
    parts = []
    for shard in json.loads((dataset / split / "index.json").read_text())["shards"]:
        packed = (dataset / split / shard["zip_data"]["basename"]).read_bytes()
        data = zstandard.ZstdDecompressor().decompress(packed, shard["raw_data"]["bytes"])
        begin = np.frombuffer(data, "<u4", offset=4, count=1)[0]
        parts.append(np.frombuffer(data, "<u2", offset=begin).reshape(shard["samples"], 17))
    return np.concatenate(parts)


def test_every_set_is_evaluated_by_name_when_it_is_due(alone: Path) -> None:
    found = evaluated(alone)
    assert {step for step, _ in found} == {0, 5, 10, 11}
    assert {name for _, name in found} == {"own", "seen", "tiny"}
    for event in found.values():
        assert event["perplexity"] == pytest.approx(math.exp(event["loss"]))


def test_the_same_number_of_tokens_each_time_at_most_the_batches_asked_for(
    alone: Path, tiny_set: Path
) -> None:
    found = evaluated(alone)
    tiny = len(validation_rows(tiny_set, "validation"))
    assert tiny < 4
    for (_, name), event in found.items():
        assert event["tokens"] == 16 * (
            tiny if name == "tiny" else min(2 * 8, event["tokens"] // 16)
        )
    assert found[(0, "seen")]["tokens"] == 2 * 8 * 16


def test_the_loss_is_what_a_hand_computes(alone: Path, dataset: Path, tiny_set: Path) -> None:
    """From the exported weights, one row at a time, in float64 sums."""
    weights, state = read_model_state(open_store(alone), None)
    assert state["step"] == 11
    shape = {"n_layer": 2, "n_head": 2, "n_embd": 16, "block_size": 16}
    shape |= {"vocab_size": 257, "padded_vocab_size": 320}
    model = build_model(ModelConfig(config=shape), seed=0)
    model.load_state_dict(weights)
    model.eval()
    for name, place, split in (
        ("own", dataset, "validation"),
        ("seen", dataset, "train"),
        ("tiny", tiny_set, "validation"),
    ):
        rows = validation_rows(place, split)[: 2 * 8]
        total = 0.0
        for row in torch.from_numpy(rows.astype(np.int64)):
            with torch.no_grad():
                sums = model(row[None, :-1], row[None, 1:])
            total += float(sums.loss_sum)
        event = evaluated(alone)[(11, name)]
        assert event["tokens"] == rows[:, 1:].size
        assert event["loss"] == pytest.approx(total / rows[:, 1:].size, abs=1e-6)


def test_bits_per_byte_come_from_the_card(alone: Path, dataset: Path, tiny_set: Path) -> None:
    for name, place, split in (
        ("own", dataset, "validation"),
        ("seen", dataset, "train"),
        ("tiny", tiny_set, "validation"),
    ):
        text = (place / "dataset.json").read_text()
        counts = Card.from_json(text, "card").splits[split]
        assert counts.text_bytes
        event = evaluated(alone)[(10, name)]
        bits = event["loss"] / math.log(2) * counts.tokens / counts.text_bytes
        assert event["bits_per_byte"] == pytest.approx(bits)


TOPOLOGIES = {
    "2 ranks": (2, {"batch__micro_size": 1, "batch__global_size": 4}),
    "2 ranks, FSDP2": (2, {"compute__strategy": "fsdp2"}),
    "4 ranks": (4, {"batch__micro_size": 1}),
}


@pytest.mark.parametrize(("ranks", "changes"), TOPOLOGIES.values(), ids=TOPOLOGIES.keys())
def test_every_topology_evaluates_the_same_samples(
    ranks: int,
    changes: dict[str, object],
    forked_runs: ForkedRuns,
    dataset: Path,
    tiny_set: Path,
    alone: Path,
    tmp_path: Path,
) -> None:
    """Weights are equal before the first step, so losses there show that samples are the same."""
    chosen = {**settings(dataset, tiny_set), "compute__devices": ranks, **changes}
    chosen["evaluation.batches"] = 16 // int(str(changes.get("batch__global_size", 8)))
    arguments = fit_arguments(dataset, tmp_path / "run", **chosen)
    done = forked_runs.run(arguments, tmp_path / "log", ranks=ranks)
    assert done.codes == [0] * ranks, done.log
    here, there = evaluated(tmp_path / "run"), evaluated(alone)
    assert here.keys() == there.keys()
    for (step, name), event in here.items():
        assert event["tokens"] == there[(step, name)]["tokens"]
        if step == 0:
            assert event["loss"] == pytest.approx(there[(step, name)]["loss"], abs=1e-6)
        elif "batch__global_size" not in changes:  # another global batch trains another model
            assert event["loss"] == pytest.approx(there[(step, name)]["loss"], abs=1e-4)
