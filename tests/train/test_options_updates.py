"""Every option of `optimizer`, `loss`, `schedule` and `model` through real runs: each changes what
it says."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
from forked_runs import ForkedRuns, Kill
from options import Short, changed, losses, weights
from runs import assert_same, steps

PEAK = 1e-2
SLOW = pytest.mark.slow


@pytest.fixture(scope="module")
def short(
    forked_runs: ForkedRuns, dataset: Path, tmp_path_factory: pytest.TempPathFactory
) -> Short:
    return Short(forked_runs, dataset, tmp_path_factory.mktemp("options"))


@pytest.fixture(scope="module")
def plain(short: Short) -> Path:
    """Six steps of AdamW with nothing else set."""
    return short("plain")


OPTIMIZERS: dict[str, dict[str, object]] = {
    "muon": {"optimizer__name": "muon"},
    "sgd": {
        "optimizer__name": "torch.optim.SGD",
        "optimizer__lr": 0.5,
        "optimizer__options": {"momentum": 0.9},
    },
    "adafactor": {"optimizer__name": "torch.optim.Adafactor", "optimizer__lr": 0.1},
}


@pytest.mark.parametrize("name", ["muon", "sgd", pytest.param("adafactor", marks=SLOW)])
def test_an_optimizer_learns_and_is_resumed_bit_for_bit(
    name: str, short: Short, plain: Path, tmp_path: Path
) -> None:
    whole = short(name, **OPTIMIZERS[name])
    assert losses(whole)[-1] < losses(whole)[0] - 0.1
    assert losses(whole)[0] == losses(plain)[0]
    assert losses(whole)[2:] != losses(plain)[2:]
    own = Short(short.forked_runs, short.dataset, tmp_path)
    arguments = own.arguments("run", **OPTIMIZERS[name])
    killed = own.forked_runs.run(arguments, tmp_path / "log", kill=Kill("updated", 5))
    assert killed.code == -9
    assert_same(own("run", **OPTIMIZERS[name]), whole)


@pytest.mark.parametrize("strategy", [pytest.param("ddp", marks=SLOW), "fsdp2"])
def test_muon_on_two_ranks_learns_nearly_the_same(strategy: str, short: Short) -> None:
    """Its orthogonalisation works in bfloat16, so sums in another order show sooner."""
    alone = short("muon", optimizer__name="muon")
    run = short(f"muon-{strategy}", ranks=2, optimizer__name="muon", compute__strategy=strategy)
    assert losses(run) == pytest.approx(losses(alone), abs=5e-3)


def warm(step: int) -> float:
    return min(1.0, (step + 1) / 2)


SCHEDULES: dict[str, tuple[dict[str, object], Callable[[int], float]]] = {
    "cosine": ({}, lambda i: PEAK * 0.5 * (1 + math.cos(math.pi * (i - 2) / 8))),
    "cosine to a floor": (
        {"schedule__min_lr": 1e-3},
        lambda i: 1e-3 + (PEAK - 1e-3) * 0.5 * (1 + math.cos(math.pi * (i - 2) / 8)),
    ),
    "linear": ({"schedule__kind": "linear"}, lambda i: PEAK * (10 - i) / 8),
    "linear over four steps": (
        {"schedule__kind": "linear", "schedule__decay": 4},
        lambda i: PEAK * max(0, 6 - i) / 4,
    ),
    "constant": ({"schedule__kind": "constant"}, lambda i: PEAK + 0 * i),
    "inverse square root": (
        {"schedule__kind": "inverse_sqrt"},
        lambda i: PEAK * math.sqrt(2 / (i + 1)),
    ),
    "wsd, a share of the run": (
        {"schedule__kind": "wsd", "schedule__decay": "50%"},
        lambda i: PEAK * min(5, 10 - i) / 5,
    ),
    "wsd, tokens": (
        {"schedule__kind": "wsd", "schedule__decay": "512 tokens", "schedule__warmup": "0.2"},
        lambda i: PEAK * min(4, 10 - i) / 4,
    ),
}


QUICK = ("cosine to a floor", "linear over four steps", "inverse square root", "wsd, tokens")


@pytest.mark.parametrize(
    ("changes", "after"),
    [
        pytest.param(*case, id=name, marks=() if name in QUICK else SLOW)
        for name, case in SCHEDULES.items()
    ],
)
def test_the_rate_of_every_step_is_the_schedules(
    changes: dict[str, object], after: Callable[[int], float], short: Short, tmp_path: Path
) -> None:
    run = Short(short.forked_runs, short.dataset, tmp_path)("run", stop__max_steps=10, **changes)
    rates = [numbers["lr"] for numbers in steps(run).values()]
    expected = [PEAK * warm(i) if i < 2 else after(i) for i in range(10)]
    assert rates == pytest.approx(expected, rel=1e-12)


def test_clipping_bounds_an_update_and_null_does_not(short: Short) -> None:
    sgd = {"optimizer__name": "torch.optim.SGD", "optimizer__weight_decay": 0, "stop__max_steps": 2}
    sgd |= {"checkpoint__every": 1, "schedule__kind": "constant"}
    moved = {}
    for name, norm in (("none", "null"), ("tight", 1e-3)):
        run = short(f"clip-{name}", **sgd, optimizer__clip_norm=norm)
        before, after = weights(run, 1), weights(run, 2)
        moved[name] = math.sqrt(sum((after[k] - before[k]).square().sum().item() for k in before))
        measured = steps(run)[2]["grad_norm"]
        expected = PEAK * (measured if norm == "null" else norm)
        assert moved[name] == pytest.approx(expected, rel=1e-3)
        assert measured > 0.1
    assert moved["tight"] < moved["none"] / 100


def test_weight_decay_reaches_the_parameters_that_it_says(short: Short) -> None:
    """After one update from the same weights and gradients, only what decays differs."""
    once: dict[str, object] = {"stop__max_steps": 1, "schedule__warmup": 1}
    base = short("decay", **once)
    without = short("no-decay", **once, optimizer__weight_decay=0)
    matrices = {name for name, tensor in weights(base).items() if tensor.ndim == 2}
    embedding = {"transformer.wte.weight"}
    assert changed(base, without) == matrices - embedding
    also = short("decay-all", **once, optimizer__decay_on=["embeddings", "norms"])
    norms = {n for n in weights(base) if "norm" in n and n.endswith("weight")}
    assert changed(also, base) == embedding | norms | {"transformer.ln_f.weight"}


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"optimizer__betas": [0.5, 0.6]}, marks=SLOW),
        pytest.param({"optimizer__eps": 0.1}, marks=SLOW),
        {"optimizer__lr": 2e-2},
        {"loss__z_loss": 0.1},
    ],
    ids=["betas", "eps", "lr", "z-loss"],
)
def test_a_number_changes_the_updates_and_not_the_first_loss(
    changes: dict[str, object], short: Short, plain: Path, tmp_path: Path
) -> None:
    """The z-loss is in the gradient, not in the loss that is reported."""
    run = Short(short.forked_runs, short.dataset, tmp_path)("run", stop__max_steps=4, **changes)
    assert losses(run)[0] == losses(plain)[0]
    assert losses(run)[3] != losses(plain)[3]


def test_the_seed_changes_the_first_weights(short: Short, plain: Path) -> None:
    other = short("seed", run__seed=4, data__shuffle__seed=3, stop__max_steps=2)
    assert steps(other)[1]["digest"] == steps(plain)[1]["digest"]
    assert losses(other)[0] != losses(plain)[0]


def test_chunked_logits_change_nothing_and_may_change_at_a_resume(
    short: Short,
) -> None:
    short("chunk", loss__chunk=24, stop__max_steps=3, schedule__kind="constant")
    run = short("chunk", loss__chunk=7, schedule__kind="constant")
    whole = short("unchunked", schedule__kind="constant")
    assert losses(run) == pytest.approx(losses(whole), abs=1e-5)


def test_documents_are_kept_apart_when_asked(short: Short, plain: Path) -> None:
    run = short("mask", model__document_mask=True)
    assert losses(run)[0] != losses(plain)[0]
    assert losses(run)[0] == pytest.approx(losses(plain)[0], abs=0.1)
    assert steps(run)[6]["digest"] == steps(plain)[6]["digest"]


@pytest.mark.slow
def test_sharded_ranks_keep_documents_apart_too(short: Short) -> None:
    run = short("mask", model__document_mask=True)
    sharded = short("mask-2", ranks=2, model__document_mask=True, compute__strategy="fsdp2")
    assert losses(sharded) == pytest.approx(losses(run), abs=1e-5)
