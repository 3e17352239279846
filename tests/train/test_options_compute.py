"""Every option of `compute` through real runs: each changes what it says, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from forked_runs import ForkedRuns, Kill
from options import Short, events, losses, weights
from runs import assert_same, end_of, steps

# What sums in another order do to a loss of about 5 in 20 steps, float32:
LOSS_TOLERANCE = 1e-5
SLOW = pytest.mark.slow


@pytest.fixture(scope="module")
def short(
    forked_runs: ForkedRuns, dataset: Path, tmp_path_factory: pytest.TempPathFactory
) -> Short:
    return Short(forked_runs, dataset, tmp_path_factory.mktemp("options"))


@pytest.fixture(scope="module")
def plain(short: Short) -> Path:
    """Six steps in one process with nothing set."""
    return short("plain")


SAME_NUMBERS = {
    "ddp": (2, 1, {"compute__strategy": "ddp"}),
    "fsdp2": (2, 1, {"compute__strategy": "fsdp2"}),
    "hsdp in groups of two": (
        4,
        1,
        {"compute__strategy": "hsdp", "compute__shard_group": 2, "batch__micro_size": 2},
    ),
    "hsdp with a group a node": (4, 2, {"compute__strategy": "hsdp", "batch__micro_size": 1}),
    "recomputed blocks": (1, 1, {"compute__activation_checkpointing": True}),
    "recomputed blocks under fsdp2": (
        2,
        1,
        {"compute__activation_checkpointing": True, "compute__strategy": "fsdp2"},
    ),
    "deterministic kernels": (1, 1, {"compute__deterministic": True}),
    "deterministic kernels under ddp": (2, 1, {"compute__deterministic": True}),
}


QUICK = ("fsdp2", "hsdp in groups of two", "recomputed blocks", "deterministic kernels")


@pytest.mark.parametrize(
    ("ranks", "nodes", "changes"),
    [
        pytest.param(*case, id=name, marks=() if name in QUICK else SLOW)
        for name, case in SAME_NUMBERS.items()
    ],
)
def test_how_it_is_computed_does_not_change_what_is_learnt(
    ranks: int, nodes: int, changes: dict[str, object], short: Short, plain: Path, tmp_path: Path
) -> None:
    run = Short(short.forked_runs, short.dataset, tmp_path)(
        "run", ranks=ranks, nodes=nodes, **changes
    )
    assert losses(run) == pytest.approx(losses(plain), abs=LOSS_TOLERANCE)
    assert weights(run).keys() == weights(plain).keys()
    start = events(run, "start")[0]
    assert start["world_size"] == ranks
    assert start["strategy"] == changes.get("compute__strategy", "auto")


BOTH = [("auto", 2), ("ddp", 4), ("fsdp2", 1)]


@pytest.fixture(scope="module")
def twenty(short: Short) -> Path:
    """Twenty steps in one process, each global batch at once."""
    return short("twenty", stop__max_steps=20, batch__micro_size=8)


@pytest.mark.parametrize(
    ("ranks", "strategy", "micro"),
    [
        pytest.param(*topology, micro, marks=() if (topology[1], micro) in BOTH else SLOW)
        for topology in [(1, "auto"), (2, "ddp"), (2, "fsdp2")]
        for micro in (1, 2, 4)
    ],
)
def test_one_global_batch_gives_one_curve(
    ranks: int, strategy: str, micro: int, short: Short, twenty: Path
) -> None:
    run = short(
        f"twenty-{ranks}-{strategy}-{micro}",
        ranks=ranks,
        compute__strategy=strategy,
        batch__micro_size=micro,
        stop__max_steps=20,
    )
    assert losses(run) == pytest.approx(losses(twenty), abs=LOSS_TOLERANCE)
    here, there = steps(run), steps(twenty)
    assert len(here) == 20
    assert [s["lr"] for s in here.values()] == [s["lr"] for s in there.values()]
    assert [s["digest"] for s in here.values()] == [s["digest"] for s in there.values()]


@pytest.mark.parametrize(
    ("precision", "kept", "ranks"),
    [
        ("bf16-mixed", torch.float32, 1),
        pytest.param("bf16-mixed", torch.float32, 2, marks=SLOW),
        pytest.param("bf16-true", torch.bfloat16, 1, marks=SLOW),
        ("bf16-true", torch.bfloat16, 2),
    ],
)
def test_lower_precision_learns_nearly_the_same(
    precision: str, kept: torch.dtype, ranks: int, short: Short, plain: Path
) -> None:
    strategy = "auto" if ranks == 1 else "fsdp2"
    run = short(
        f"{precision}-{ranks}",
        ranks=ranks,
        compute__precision=precision,
        compute__strategy=strategy,
    )
    assert losses(run) != losses(plain)
    assert losses(run) == pytest.approx(losses(plain), abs=0.02)
    assert {tensor.dtype for tensor in weights(run).values()} == {kept}
    assert events(run, "start")[0]["precision"] == precision


def test_threads_are_those_that_were_asked_for(short: Short, plain: Path) -> None:
    assert events(plain, "start")[0]["threads"] == 1
    run = short("threads", compute__threads=2, stop__max_steps=2)
    assert events(run, "start")[0]["threads"] == 2


def test_a_known_peak_gives_mfu(short: Short, plain: Path) -> None:
    assert all("mfu" not in event for event in events(plain, "step"))
    run = short("peak", ranks=2, compute__peak_flops=1e9, stop__max_steps=2)
    per_token = 6 * (2 * (3 * 16 * 16 + 16 * 16 + 2 * 4 * 16 * 16) + 320 * 16) + 12 * 2 * 16 * 16
    for event in events(run, "step"):
        assert event["mfu"] == pytest.approx(event["tokens_per_second"] * per_token / 2e9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "changes"),
    [
        (1, {}),
        (2, {"compute__strategy": "ddp"}),
        (2, {"compute__strategy": "fsdp2"}),
        (2, {"compute__strategy": "fsdp2", "compute__activation_checkpointing": True}),
    ],
    ids=["alone", "ddp", "fsdp2", "fsdp2 recomputing"],
)
def test_compiled_blocks_compute_the_same_and_keep_their_names(
    ranks: int, changes: dict[str, object], short: Short, plain: Path, tmp_path: Path
) -> None:
    """A compiled run is then continued without, in one process: its checkpoint is like any."""
    own = Short(short.forked_runs, short.dataset, tmp_path)
    run = own("run", ranks=ranks, compute__compile=True, **changes)
    assert losses(run) == pytest.approx(losses(plain), abs=LOSS_TOLERANCE)
    assert weights(run).keys() == weights(plain).keys()
    longer = {"stop__max_steps": 8, "run__on_config_change": "accept"}
    own("run", **longer)
    assert sorted(steps(run)) == list(range(1, 9))


@pytest.mark.slow
def test_compiled_blocks_keep_documents_apart(short: Short) -> None:
    eager = short("mask-eager", model__document_mask=True)
    compiled = short("mask-compiled", model__document_mask=True, compute__compile=True)
    assert losses(compiled) == pytest.approx(losses(eager), abs=LOSS_TOLERANCE)


@pytest.mark.parametrize(
    ("ranks", "strategy"),
    [pytest.param(1, "auto", marks=SLOW), pytest.param(2, "ddp", marks=SLOW), (2, "fsdp2")],
)
def test_tied_embeddings_stay_tied_over_a_resume(
    ranks: int, strategy: str, short: Short, plain: Path, tmp_path: Path
) -> None:
    settings = {"model__tie_embeddings": True, "compute__strategy": strategy, "ranks": ranks}
    settings["checkpoint__asynchronous"] = False
    whole = short(f"tied-{strategy}", **settings)
    own = Short(short.forked_runs, short.dataset, tmp_path)
    for kill in (Kill("updated", 5), None):  # the second start finds step 3
        arguments = own.arguments("run", **settings)
        own.forked_runs.run(arguments, tmp_path / "log", ranks=ranks, kill=kill)
    assert_same(tmp_path / "run" / "run", whole)
    tensors = weights(whole)
    assert torch.equal(tensors["lm_head.weight"], tensors["transformer.wte.weight"])
    untied = weights(plain)
    assert not torch.equal(untied["lm_head.weight"], untied["transformer.wte.weight"])
    assert end_of(whole).step == 6


def test_a_run_may_change_its_precision_but_not_what_its_weights_are_kept_in(short: Short) -> None:
    open_end: dict[str, object] = {"schedule__kind": "constant"}
    short("precision", **open_end, stop__max_steps=3)
    run = short("precision", **open_end, compute__precision="bf16-mixed", stop__max_steps=5)
    assert sorted(steps(run)) == list(range(1, 6))
    arguments = short.arguments("precision", **open_end, compute__precision="bf16-true")
    done = short.forked_runs.run(arguments, short.root / "precision" / "log")
    assert done.code == 2
    assert "weights is float32 -> bfloat16: may not change within a run" in done.log
