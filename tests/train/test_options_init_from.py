"""Continued pretraining: a run starts from another's weights, once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from forked_runs import ForkedRuns, Kill
from options import Short, events, weights
from runs import assert_same

from stream_pretrain.export.litgpt import export_litgpt
from stream_pretrain.export.trained_model import read_trained_model
from stream_pretrain.storage.store import open_store


@pytest.fixture(scope="module")
def short(
    forked_runs: ForkedRuns, dataset: Path, tmp_path_factory: pytest.TempPathFactory
) -> Short:
    return Short(forked_runs, dataset, tmp_path_factory.mktemp("init-from"))


@pytest.fixture(scope="module")
def first(short: Short) -> Path:
    """A run of six steps."""
    return short("first")


@pytest.mark.parametrize(
    ("ranks", "strategy"),
    [(1, "auto"), pytest.param(2, "ddp", marks=pytest.mark.slow), (2, "fsdp2")],
)
def test_a_run_begins_where_another_ended_and_reads_it_once(
    ranks: int, strategy: str, short: Short, first: Path, tmp_path: Path
) -> None:
    """The architecture comes from the directory; after a kill the weights there are not missed."""
    source = tmp_path / "exported"
    export_litgpt(read_trained_model(open_store(first), None), source)
    settings: dict[str, object] = {
        "model__config": "null",
        "model__init_from": source,
        "evaluation__at_start": True,
        "checkpoint__asynchronous": False,
        "compute__strategy": strategy,
    }
    own = Short(short.forked_runs, short.dataset, tmp_path)
    whole = own("whole", ranks=ranks, **settings)
    started = events(whole, "evaluation")[0]
    assert started["step"] == 0
    ended = events(first, "evaluation")[-1]["loss"]
    assert started["loss"] == pytest.approx(ended, abs=0 if ranks == 1 else 1e-6)
    killed = own.forked_runs.run(
        own.arguments("killed", ranks=ranks, **settings),
        tmp_path / "log",
        ranks=ranks,
        kill=Kill("updated", 5),
    )
    assert killed.code == -9
    (source / "lit_model.pth").unlink()
    assert_same(own("killed", ranks=ranks, **settings), whole)


def test_weights_of_another_architecture_are_refused(
    short: Short, first: Path, tmp_path: Path
) -> None:
    source = tmp_path / "exported"
    export_litgpt(read_trained_model(open_store(first), None), source)
    other = {"n_layer": 3, "n_head": 2, "n_embd": 16, "block_size": 16, "vocab_size": 257}
    other["padded_vocab_size"] = 320
    own = Short(short.forked_runs, short.dataset, tmp_path)
    said = own.refused("run", model__config=other, model__init_from=source)
    assert "Choose a checkpoint of this architecture" in said


def test_weights_of_another_tokenizer_are_refused(
    short: Short, first: Path, tmp_path: Path
) -> None:
    source = tmp_path / "exported"
    export_litgpt(read_trained_model(open_store(first), None), source)
    file = source / "tokenizer.json"
    body = json.loads(file.read_text())
    body["model"]["vocab"] = {
        token: (number + 1) % 256 if number < 256 else number
        for token, number in body["model"]["vocab"].items()
    }
    file.write_text(json.dumps(body))
    own = Short(short.forked_runs, short.dataset, tmp_path)
    said = own.refused("run", model__init_from=source, loss__chunk=64)
    assert "2 faults" in said
    assert "its tokenizer.json is not the data's" in said


def test_the_first_weights_are_the_same_on_every_strategy(short: Short, tmp_path: Path) -> None:
    """A rate of almost nothing and a save after one step show them."""
    own = Short(short.forked_runs, short.dataset, tmp_path)
    still: dict[str, object] = {"stop__max_steps": 1, "schedule__warmup": 1, "optimizer__lr": 1e-30}
    alone = weights(own("alone", **still))
    sharded = weights(own("sharded", ranks=2, compute__strategy="fsdp2", **still))
    assert alone.keys() == sharded.keys()
    assert all(torch.allclose(alone[n], sharded[n], rtol=0, atol=1e-20) for n in alone)
