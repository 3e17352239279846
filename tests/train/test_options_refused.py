"""Options that cannot take effect are refused before anything starts, with every other fault."""

from __future__ import annotations

from pathlib import Path

import pytest
from forked_runs import ForkedRuns
from options import Short


@pytest.fixture
def short(forked_runs: ForkedRuns, dataset: Path, tmp_path: Path) -> Short:
    return Short(forked_runs, dataset, tmp_path)


def test_all_faults_that_data_model_and_machine_show_come_together(
    short: Short, dataset: Path
) -> None:
    said = short.refused(
        "many",
        data__train=[{"local": str(dataset / "train")}],  # bare shards: nothing says end-of-text
        data__seq_len=12,
        model__document_mask=True,
        batch__global_size=4096,
        batch__micro_size=64,
        optimizer__name="torch.optim.SGD",
        optimizer__options={"momentun": 0.9},
        loss__chunk=4096,
        schedule__warmup=1000,
        compute__accelerator="auto",
        compute__devices="auto",
        compute__strategy="fsdp2",
    )
    for words in (
        "optimizer.options.momentun is 0.9: SGD has no such argument; did you mean momentum?",
        "compute.strategy is fsdp2: has no effect in one process",
        "model.document_mask is true: the data names no end-of-text token",
        "data.seq_len is 12: stream train has rows of 17 ids",
        "loss.chunk is 4096: has no effect, a micro-batch has 768 tokens",
        "less than one global batch",
        "schedule.warmup is 1000 steps",
    ):
        assert words in said, said
    assert "faults in the configuration; nothing was started" in said


def test_a_missing_dataset_does_not_hide_a_wrong_model_or_optimizer(
    short: Short, tmp_path: Path
) -> None:
    said = short.refused(
        "hidden",
        data__train=[{"local": str(tmp_path / "nothing")}],
        model__config="null",
        model__name="pythia-14n",
        optimizer__name="torch.optim.AdamX",
        compute__accelerator="cuda",
    )
    for words in (
        "4 faults",
        "neither dataset.json nor index.json",
        "model.name is 'pythia-14n': did you mean pythia-14m",
        "did you mean torch.optim.Adam",
        "compute.accelerator is cuda: no GPU is visible; use cpu or auto",
    ):
        assert words in said, said


REFUSED: dict[str, tuple[dict[str, object], str]] = {
    "16-mixed on a CPU": (
        {"compute__precision": "16-mixed", "compute__accelerator": "auto"},
        "compute.precision is 16-mixed: needs a GPU and none is visible",
    ),
    "16-mixed where weights are sharded": (
        {
            "compute__precision": "16-mixed",
            "compute__accelerator": "cuda",
            "compute__strategy": "fsdp2",
        },
        "has no loss scale under fsdp2; use bf16-mixed, or ddp",
    ),
    "a stop at the first overflow of 16-mixed": (
        {
            "compute__precision": "16-mixed",
            "compute__accelerator": "cuda",
            "optimizer__on_nonfinite": "stop",
        },
        "would stop while 16-mixed looks for its loss scale",
    ),
    "sharding for an optimizer that cannot": (
        {
            "optimizer__name": "torch.optim.Adafactor",
            "compute__strategy": "fsdp2",
            "compute__devices": 2,
        },
        "torch cannot do its step on sharded parameters",
    ),
    "a group that is all ranks": (
        {"compute__strategy": "hsdp", "compute__devices": 4, "batch__micro_size": 2},
        "shard_group is null, which means 4 here: must be 2 of the 4 ranks",
    ),
    "a group that does not divide": (
        {
            "compute__strategy": "hsdp",
            "compute__devices": 4,
            "compute__shard_group": 3,
            "batch__micro_size": 2,
        },
        "shard_group is 3: must be 2 of the 4 ranks; to shard over all use fsdp2, over none ddp",
    ),
    "a chunk that cuts nothing": ({"loss__chunk": 64}, "a micro-batch has 64 tokens"),
    "several nodes without a launcher": (
        {"compute__nodes": 2, "compute__devices": 1, "batch__micro_size": 2},
        "compute.nodes is 2: more than one node needs torchrun or SLURM",
    ),
    "a decay of nothing": (
        {"optimizer__weight_decay": 0, "optimizer__decay_on": ["norms"]},
        "optimizer.decay_on is ['norms']: has no effect with weight_decay 0",
    ),
}


@pytest.mark.parametrize(("changes", "words"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_take_effect(changes: dict[str, object], words: str, short: Short) -> None:
    assert words in short.refused("run", **changes)


def test_a_compiler_is_asked_for_before_anything_starts(short: Short, tmp_path: Path) -> None:
    arguments = short.arguments("run", compute__compile=True)
    log = tmp_path / "log"
    bare = {"PATH": str(tmp_path), "CXX": ""}
    done = short.forked_runs.run(arguments, log, environment=bare)
    assert done.code == 2
    assert "compute.compile is true: needs a compiler (g++ or clang++) on the PATH" in done.log
