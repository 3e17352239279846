"""Every optimizer setting changes what it says, or is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

from stream_pretrain.config.sections import OptimizerConfig
from stream_pretrain.errors import ConfigError
from stream_pretrain.optim.build_optimizer import (
    build_optimizer,
    check_optimizer,
    decides_on_device,
)
from stream_pretrain.optim.muon import MuonWithAdamW
from stream_pretrain.optim.param_groups import named_parameters


class Net(nn.Module):
    """An embedding, a hidden matrix with a bias, a norm and a head: one of each role."""

    def __init__(self, *, tied: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lm_head = nn.Linear(4, 8, bias=False)
        self.wte = nn.Embedding(8, 4)
        self.hidden = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4, bias=False)
        if tied:
            self.wte.weight = self.lm_head.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.lm_head(self.norm(self.hidden(self.wte(ids))))
        return out


def config(**changes: Any) -> OptimizerConfig:
    return OptimizerConfig(**{"lr": 1e-2, **changes})


def step(net: Net, optimizer: torch.optim.Optimizer, steps: int = 1) -> None:
    ids = torch.arange(8)
    for _ in range(steps):
        nn.functional.cross_entropy(net(ids), (ids * 3 + 1) % 8).backward()
        optimizer.step()
        optimizer.zero_grad()


def weights(net: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in net.named_parameters()}


def decayed_names(net: nn.Module, optimizer: torch.optim.Optimizer) -> set[str]:
    names = {id(p): name for name, p in net.named_parameters()}
    return {names[id(p)] for g in optimizer.param_groups if g["weight_decay"] for p in g["params"]}


def test_only_matrices_decay_unless_asked() -> None:
    net = Net()
    made = build_optimizer(net, config())
    assert decayed_names(net, made) == {"hidden.weight", "lm_head.weight"}


@pytest.mark.parametrize(
    ("role", "name"),
    [("embeddings", "wte.weight"), ("norms", "norm.weight"), ("biases", "hidden.bias")],
)
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_decay_on_adds_the_role_it_names(role: str, name: str, optimizer: str) -> None:
    net = Net()
    made = build_optimizer(net, config(name=optimizer, decay_on=[role]))
    assert decayed_names(net, made) == {"hidden.weight", "lm_head.weight", name}


def test_a_tied_embedding_counts_as_an_embedding_and_once() -> None:
    net = Net(tied=True)
    made = build_optimizer(net, config())
    assert decayed_names(net, made) == {"hidden.weight"}
    assert [entry.role for entry in named_parameters(net)].count("embeddings") == 1


def test_frozen_parameters_are_left_out() -> None:
    net = Net()
    net.norm.weight.requires_grad_(False)
    assert "norm.weight" not in {entry.name for entry in named_parameters(net)}


def test_adamw_is_fused_and_takes_the_sections_numbers() -> None:
    made = build_optimizer(Net(), config(betas=(0.8, 0.9), eps=1e-6, weight_decay=0.3))
    assert isinstance(made, torch.optim.AdamW)
    group = made.param_groups[0]
    assert (group["fused"], group["betas"], group["eps"]) == (True, (0.8, 0.9), 1e-6)
    assert (group["weight_decay"], group["lr"]) == (0.3, 1e-2)
    assert decides_on_device(made)


def test_without_decay_weights_only_move_by_the_gradient() -> None:
    with_decay, without = Net(), Net()
    step(with_decay, build_optimizer(with_decay, config(weight_decay=0.5)))
    step(without, build_optimizer(without, config(weight_decay=0.0)))
    changed = {n for n, w in weights(with_decay).items() if not torch.equal(w, weights(without)[n])}
    assert changed == {"hidden.weight", "lm_head.weight"}


@pytest.mark.parametrize(
    "name",
    ["SGD", "Adam", "NAdam", "RAdam", "Adafactor", "RMSprop", "Adagrad", "Adamax", "Adadelta",
     "ASGD", "Rprop"],
)  # fmt: skip
def test_any_class_of_torch_optim_trains(name: str) -> None:
    net = Net()
    before = weights(net)
    made = build_optimizer(net, config(name=f"torch.optim.{name}"))
    assert type(made).__name__ == name
    step(net, made)
    assert any(not torch.equal(w, before[n]) for n, w in weights(net).items())


def test_adam_by_path_decays_decoupled() -> None:
    made = build_optimizer(Net(), config(name="torch.optim.Adam"))
    assert made.param_groups[0]["decoupled_weight_decay"] is True
    assert made.param_groups[0]["betas"] == (0.9, 0.999)


def test_options_reach_the_class() -> None:
    made = build_optimizer(Net(), config(name="torch.optim.SGD", options={"momentum": 0.7}))
    assert made.param_groups[0]["momentum"] == 0.7


@pytest.mark.parametrize(
    ("section", "path", "words"),
    [
        ({"name": "adam"}, "optimizer.name", "did you mean torch.optim.Adam?"),
        ({"name": "torch.optim.AdamWW"}, "optimizer.name", "did you mean torch.optim.AdamW?"),
        ({"name": "lion"}, "optimizer.name", "must be adamw, muon or a class of torch.optim"),
        ({"name": "torch.optim.LBFGS"}, "optimizer.name", "several times a step"),
        ({"name": "torch.optim.SparseAdam"}, "optimizer.name", "sparse gradients only"),
        ({"name": "torch.optim.Optimizer"}, "optimizer.name", "the base class"),
        ({"name": "torch.optim.Muon"}, "optimizer.name", "write muon"),
        ({"name": "torch.optim.SGD", "betas": (0.9, 0.9)}, "optimizer.betas", "SGD has no betas"),
        ({"name": "torch.optim.SGD", "eps": 1e-6}, "optimizer.eps", "SGD has no single eps"),
        ({"name": "torch.optim.Adafactor", "eps": 1e-6}, "optimizer.eps", "no single eps"),
        (
            {"name": "torch.optim.RMSprop", "weight_decay": 0.2},
            "optimizer.weight_decay",
            "no decoupled weight decay",
        ),
        ({"options": {"momentun": 1}}, "optimizer.options.momentun", "AdamW has no such argument"),
        ({"options": {"amsgrd": True}}, "optimizer.options.amsgrd", "did you mean amsgrad?"),
        ({"options": {"lr": 1.0}}, "optimizer.options.lr", "set by the optimizer section itself"),
        ({"name": "muon", "options": {"moment": 1}}, "optimizer.options.moment", "momentum?"),
    ],
)
def test_what_cannot_take_effect_is_refused(section: dict[str, Any], path: str, words: str) -> None:
    faults = check_optimizer(config(**section))
    assert [fault.path for fault in faults] == [path]
    assert words in faults[0].remedy
    with pytest.raises(ConfigError, match=re.escape(words)):
        build_optimizer(Net(), config(**section))


def test_a_resolved_section_which_has_every_key_is_accepted() -> None:
    written = config(name="torch.optim.SGD").model_dump()
    made = build_optimizer(Net(), OptimizerConfig(**written))
    assert isinstance(made, torch.optim.SGD)


def test_all_faults_of_the_section_come_together() -> None:
    section = config(name="torch.optim.SGD", betas=(0.9, 0.9), eps=1e-6, options={"x": 1})
    assert len(check_optimizer(section)) == 3
    assert check_optimizer(config()) == check_optimizer(config(name="muon")) == []


def test_a_torch_without_muon_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.optim, "Muon")
    with pytest.raises(ConfigError, match=r"has no Muon; install torch 2\.9"):
        build_optimizer(Net(), config(name="muon"))


def test_muon_updates_hidden_matrices_and_adamw_the_rest() -> None:
    net = Net()
    made = build_optimizer(net, config(name="muon"))
    step(net, made)
    state = {entry.name: set(made.state[entry.parameter]) for entry in named_parameters(net)}
    assert state.pop("hidden.weight") == {"momentum_buffer"}
    assert all(keys == {"step", "exp_avg", "exp_avg_sq"} for keys in state.values())


def test_muon_options_change_the_update() -> None:
    nets = Net(), Net()
    for net, options in zip(nets, ({}, {"adjust_lr_fn": "original"}), strict=True):
        step(net, build_optimizer(net, config(name="muon", options=options)))
    assert not torch.equal(nets[0].hidden.weight, nets[1].hidden.weight)
    assert torch.equal(nets[0].wte.weight, nets[1].wte.weight)


def test_muon_learns() -> None:
    net = Net()
    made = build_optimizer(net, config(name="muon", lr=0.05))
    ids = torch.arange(8)
    step(net, made, steps=60)
    assert torch.equal(net(ids).argmax(-1), (ids * 3 + 1) % 8)


def test_muons_state_goes_through_a_state_dict_and_on_as_if_nothing_had_happened() -> None:
    straight, resumed = Net(), Net()
    section = config(name="muon")
    whole = build_optimizer(straight, section)
    step(straight, whole, steps=6)

    first = build_optimizer(resumed, section)
    step(resumed, first, steps=3)
    saved = first.state_dict()
    second = build_optimizer(resumed, section)
    second.load_state_dict(saved)
    step(resumed, second, steps=3)
    assert all(torch.equal(w, weights(straight)[n]) for n, w in weights(resumed).items())


def test_muons_state_goes_through_distributed_checkpoints_state_dict() -> None:
    net, other = Net(), Net()
    section = config(name="muon")
    made = build_optimizer(net, section)
    step(net, made, steps=2)
    saved = get_optimizer_state_dict(net, made)
    fresh = build_optimizer(other, section)
    set_optimizer_state_dict(other, fresh, saved)
    for name, parameter in net.named_parameters():
        for key, value in made.state[parameter].items():
            restored = fresh.state[dict(other.named_parameters())[name]][key]
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(restored))


@pytest.mark.parametrize("name", ["adamw", "muon"])
@pytest.mark.parametrize("steps_before", [0, 2])
def test_a_step_marked_as_not_finite_changes_nothing(name: str, steps_before: int) -> None:
    net = Net()
    made: Any = build_optimizer(net, config(name=name))
    step(net, made, steps=steps_before)
    before = weights(net)
    state = {k: {n: v.clone() for n, v in s.items()} for k, s in made.state.items()}
    made.found_inf = torch.ones(())
    step(net, made)
    assert all(torch.equal(w, before[n]) for n, w in weights(net).items())
    for parameter, values in state.items():
        assert all(torch.equal(made.state[parameter][n], v) for n, v in values.items())
    made.found_inf = torch.zeros(())
    step(net, made)
    assert not any(torch.equal(w, before[n]) for n, w in weights(net).items())


def test_a_marked_step_equals_an_unmarked_one_when_all_is_finite() -> None:
    nets = Net(), Net()
    for net, mark in zip(nets, (None, torch.zeros(())), strict=True):
        made: Any = build_optimizer(net, config(name="muon"))
        made.found_inf = mark
        step(net, made, steps=3)
    assert all(torch.equal(w, weights(nets[0])[n]) for n, w in weights(nets[1]).items())


def test_muon_evaluates_a_closure_once() -> None:
    net = Net()
    made = build_optimizer(net, config(name="muon"))
    assert isinstance(made, MuonWithAdamW)
    calls = []

    def closure() -> float:
        calls.append(1)
        return 3.0

    assert made.step(closure) == 3.0
    assert len(calls) == 1


def test_sgd_does_not_decide_on_the_device() -> None:
    assert not decides_on_device(build_optimizer(Net(), config(name="torch.optim.RMSprop")))
    assert decides_on_device(build_optimizer(Net(), config(name="muon")))
