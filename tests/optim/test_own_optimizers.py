"""An optimizer of one's own trains and resumes like any other, or is refused with the reason."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_runs import ForkedRuns, Kill
from optim.own_optimizers import Lion
from runs import assert_same, steps
from small import fit_arguments
from torch import nn

from stream_pretrain.config.sections import OptimizerConfig
from stream_pretrain.errors import ConfigError
from stream_pretrain.optim import registry
from stream_pretrain.optim.build_optimizer import (
    build_optimizer,
    check_optimizer,
    decides_on_device,
)
from stream_pretrain.optim.registry import ClassFacts, class_entry


def config(name: str, **changes: Any) -> OptimizerConfig:
    return OptimizerConfig(**{"name": f"optim.own_optimizers:{name}", "lr": 1e-2, **changes})


@pytest.mark.parametrize("name", ["Lion", "lion"])
def test_a_class_and_a_function_make_the_same_groups(name: str) -> None:
    made = build_optimizer(nn.Linear(3, 2), config(name, weight_decay=0.2))
    assert isinstance(made, Lion)
    assert [(len(g["params"]), g["weight_decay"]) for g in made.param_groups] == [(1, 0.2), (1, 0)]
    assert decides_on_device(made)


def test_a_new_optimizer_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = class_entry("lion", Lion, ClassFacts(decoupled_decay=True, shardable=False))
    monkeypatch.setattr(registry, "OPTIMIZERS", (*registry.OPTIMIZERS, entry))
    section = OptimizerConfig(name="lion", lr=1e-2)
    made = build_optimizer(nn.Linear(3, 2), section)
    assert isinstance(made, Lion)
    assert decides_on_device(made)
    assert "use compute.strategy ddp" in check_optimizer(section, sharded=True)[0].remedy
    (fault,) = check_optimizer(OptimizerConfig(name="x", lr=1e-2))
    assert "must be adamw, muon, lion or a class of torch.optim by path" in fault.remedy


def test_settings_reach_it() -> None:
    assert build_optimizer(nn.Linear(3, 2), config("Lion")).param_groups[0]["betas"] == (0.9, 0.99)
    own = config("Lion", betas=(0.8, 0.9))
    assert build_optimizer(nn.Linear(3, 2), own).param_groups[0]["betas"] == (0.8, 0.9)
    own = config("lion", options={"slow": 0.5})
    assert build_optimizer(nn.Linear(3, 2), own).param_groups[0]["betas"] == (0.9, 0.5)


def test_a_derived_class_does_not_decide_on_the_device_unless_it_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert check_optimizer(config("Lion")) == []
    monkeypatch.setattr(Lion, "decides_on_device", False)
    assert not decides_on_device(build_optimizer(nn.Linear(3, 2), config("Lion")))
    assert not decides_on_device(torch.optim.SGD(nn.Linear(3, 2).parameters()))


@pytest.mark.parametrize(
    ("section", "path", "words"),
    [
        (config("Lion", eps=1e-6), "optimizer.eps", "Lion has no single eps"),
        (config("Lion", options={"x": 1}), "optimizer.options.x", "Lion has no such argument"),
        (config("lyon"), "optimizer.name", "has no lyon; did you mean lion?"),
        (config("annotations"), "optimizer.name", "must be a function or class"),
        (config("lion").model_copy(update={"name": "x y:z"}), "optimizer.name", "must have the"),
        (config("lion").model_copy(update={"name": "nix:z"}), "optimizer.name", "on PYTHONPATH"),
    ],
)
def test_what_is_wrong_without_a_model_is_said_before_there_is_one(
    section: OptimizerConfig, path: str, words: str
) -> None:
    (fault,) = check_optimizer(section)
    assert fault.path == path
    assert words in fault.remedy


@pytest.mark.parametrize(
    ("section", "words"),
    [
        (config("only_hidden"), "leaves out 1 of the 2 trained parameters, such as bias; give it"),
        (config("nothing"), "returned a NoneType, must return a torch.optim.Optimizer"),
        (config("raises"), "raised KeyError: 'slow' ("),
        (config("lion", options={"fast": 1}), "optimizer.options.fast: lion has slow only"),
    ],
)
def test_what_is_wrong_with_what_it_returns_is_said(section: OptimizerConfig, words: str) -> None:
    assert check_optimizer(section) == []
    with pytest.raises(ConfigError, match=re.escape(words)):
        build_optimizer(nn.Linear(3, 2), section)


def test_a_killed_run_ends_as_if_never_killed(
    forked_runs: ForkedRuns, dataset: Path, tmp_path: Path
) -> None:
    settings: dict[str, object] = {
        "optimizer__name": "optim.own_optimizers:lion",
        "optimizer__lr": 3e-3,
        "stop__max_epochs": 1,
        # saved at once, so that the checkpoint is there when the process is killed
        "checkpoint__asynchronous": False,
    }
    for name, kill in (("straight", None), ("killed", Kill("updated", 8)), ("killed", None)):
        (tmp_path / name).mkdir(exist_ok=True)
        arguments = fit_arguments(dataset, tmp_path / name / "run", **settings)
        done = forked_runs.run(arguments, tmp_path / name / "log", kill=kill)
        assert done.code == (0 if kill is None else -9), done.log
    assert_same(tmp_path / "killed" / "run", tmp_path / "straight" / "run")
    losses = [numbers["loss"] for _, numbers in sorted(steps(tmp_path / "killed" / "run").items())]
    assert losses[-1] < losses[0] - 0.1


def test_a_fault_stands_beside_the_others_before_anything_starts(
    forked_runs: ForkedRuns, dataset: Path, tmp_path: Path
) -> None:
    changes = {"optimizer__name": "optim.own_optimizers:lyon", "loss__chunk": 64}
    done = forked_runs.run(fit_arguments(dataset, tmp_path / "run", **changes), tmp_path / "log")
    assert done.code == 2
    assert "2 faults" in done.log
    assert not (tmp_path / "run" / "config.yaml").exists()
