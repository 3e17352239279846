"""Models and optimizers of many kinds come back bit for bit, and what does not fit is refused."""

from __future__ import annotations

import os
import pickle
import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tiny_run as tiny
import torch
from torch import Tensor, nn

from stream_pretrain.checkpoint import dcp, restore, rng
from stream_pretrain.checkpoint.save import Checkpoints
from stream_pretrain.checkpoint.snapshot import tensors_to_write
from stream_pretrain.checkpoint.state import TrainState
from stream_pretrain.checkpoint.tensors import clean_name, collect_tensors, unwrapped
from stream_pretrain.errors import CheckpointError
from stream_pretrain.schema import World

Make = Callable[[nn.Module], torch.optim.Optimizer]

OPTIMIZERS: dict[str, Make] = {
    "adamw": tiny.make_optimizer,
    "amsgrad": lambda m: torch.optim.AdamW(m.parameters(), lr=1e-2, amsgrad=True),
    "fused": lambda m: torch.optim.AdamW(m.parameters(), lr=1e-2, fused=True),
    "tensor rate": lambda m: torch.optim.AdamW(m.parameters(), lr=torch.tensor(1e-2)),
    "sgd": lambda m: torch.optim.SGD(m.parameters(), lr=1e-2),
    "momentum": lambda m: torch.optim.SGD(m.parameters(), lr=1e-2, momentum=0.9),
    "adafactor": lambda m: torch.optim.Adafactor(m.parameters(), lr=1e-2),
    "nadam": lambda m: torch.optim.NAdam(m.parameters(), lr=1e-2),
    "rmsprop": lambda m: torch.optim.RMSprop(m.parameters(), lr=1e-2, momentum=0.5),
}


def saved(run: Path, make: Make = tiny.make_optimizer, **model: bool) -> tuple[Checkpoints, str]:
    """A run of three steps and its fingerprint at the third."""
    network = tiny.make_model(**model)
    optimizer = make(network)
    saver = tiny.checkpoints(run, network, optimizer)
    state = TrainState()
    tiny.train(network, optimizer, state, 3)
    saver.save(state)
    saver.wait()
    return saver, tiny.fingerprint(network, optimizer)


def restored(run: Path, network: nn.Module, optimizer: torch.optim.Optimizer) -> TrainState:
    reader = tiny.checkpoints(run, network, optimizer)
    found = reader.find("auto")
    assert found is not None
    return reader.restore(found)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("tied", [True, False])
def test_optimizer_goes_on_bit_for_bit(tmp_path: Path, name: str, tied: bool) -> None:
    make = OPTIMIZERS[name]
    saver, seen = saved(tmp_path, make, tied=tied)
    state = TrainState(step=3, data_step=3)
    on = tiny.train(saver.model, saver._optimizers[0], state, 3)
    network = tiny.make_model(seed=9, tied=tied)
    optimizer = make(network)
    again = restored(tmp_path, network, optimizer)
    assert tiny.fingerprint(network, optimizer) == seen
    assert tiny.train(network, optimizer, again, 3) == on
    assert optimizer.param_groups[0]["lr"] == pytest.approx(1e-2)


def test_two_optimizers_share_one_model(tmp_path: Path) -> None:
    def both(network: nn.Module) -> list[torch.optim.Optimizer]:
        matrices = [p for p in network.parameters() if p.ndim == 2]
        rest = [p for p in network.parameters() if p.ndim != 2]
        return [torch.optim.Muon(matrices, lr=1e-2), torch.optim.AdamW(rest, lr=1e-2)]

    network = tiny.make_model()
    optimizers = both(network)
    network(torch.arange(8)[None]).square().sum().backward()
    for optimizer in optimizers:
        optimizer.step()
    saver = tiny.checkpoints(tmp_path, network, optimizers)  # type: ignore[arg-type]
    saver.save(TrainState(step=1, data_step=1))
    saver.close()
    other = tiny.make_model(seed=9)
    others = both(other)
    restored(tmp_path, other, others)  # type: ignore[arg-type]
    mine, theirs = collect_tensors(network, optimizers), collect_tensors(other, others)
    assert mine.optimizer.keys() == theirs.optimizer.keys()
    for name, tensor in mine.optimizer.items():
        assert torch.equal(tensor, theirs.optimizer[name]), name


def test_groups_may_be_cut_differently_and_settings_are_the_configurations(
    tmp_path: Path,
) -> None:
    _, seen = saved(tmp_path)
    network = tiny.make_model(seed=9)
    groups = [{"params": [p], "weight_decay": 0.3} for p in reversed([*network.parameters()])]
    optimizer = torch.optim.AdamW(groups, lr=5e-4)
    restored(tmp_path, network, optimizer)
    assert tiny.fingerprint(network, optimizer) == seen
    assert {group["lr"] for group in optimizer.param_groups} == {5e-4}
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.3}


def test_parameter_without_an_update_has_no_state_after_a_restore(tmp_path: Path) -> None:
    class Half(tiny.TinyModel):
        def forward(self, ids: Tensor) -> Tensor:
            logits: Tensor = self.head(self.embedding(ids))
            return logits

    torch.manual_seed(0)
    network = Half()
    optimizer = tiny.make_optimizer(network)
    state = TrainState()
    tiny.train(network, optimizer, state, 2)
    saver = tiny.checkpoints(tmp_path, network, optimizer)
    saver.save(state)
    saver.close()
    other = Half()
    other_optimizer = tiny.make_optimizer(other)
    restored(tmp_path, other, other_optimizer)
    assert tiny.fingerprint(other, other_optimizer) == tiny.fingerprint(network, optimizer)
    assert other.norm.weight not in other_optimizer.state


def test_save_before_the_first_step_changes_nothing(tmp_path: Path) -> None:
    network = tiny.make_model()
    optimizer = tiny.make_optimizer(network)
    saver = tiny.checkpoints(tmp_path, network, optimizer)
    saver.save(TrainState())
    saver.close()
    assert not optimizer.state
    other = tiny.make_model(seed=9)
    other_optimizer = tiny.make_optimizer(other)
    restored(tmp_path, other, other_optimizer)
    assert not other_optimizer.state
    assert tiny.fingerprint(other, other_optimizer) == tiny.fingerprint(network, optimizer)


def test_other_model_is_refused_with_names(tmp_path: Path) -> None:
    saved(tmp_path)
    wide = tiny.make_model()
    wide.norm = nn.LayerNorm(8, bias=False)
    with pytest.raises(CheckpointError, match=r"holds norm\.bias, norm\.bias\.exp_avg"):
        restored(tmp_path, wide, tiny.make_optimizer(wide))
    more = tiny.make_model()
    more.extra = nn.Linear(2, 2)
    with pytest.raises(CheckpointError, match=r"extra\.weight is missing; extra\.bias is missing"):
        restored(tmp_path, more, tiny.make_optimizer(more))
    other = tiny.make_model()
    other.norm = nn.LayerNorm(8, dtype=torch.float64)
    with pytest.raises(CheckpointError, match=r"norm\.weight is torch\.float32, not torch\.float"):
        restored(tmp_path, other, tiny.make_optimizer(other))
    other.norm = nn.LayerNorm(9)
    with pytest.raises(CheckpointError, match=r"norm\.weight is \(8,\), not \(9,\)"):
        restored(tmp_path, other, tiny.make_optimizer(other))


def test_other_optimizer_is_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    network = tiny.make_model()
    with pytest.raises(CheckpointError, match="which this model and optimizer do not have"):
        restored(tmp_path, network, torch.optim.SGD(network.parameters(), lr=1.0))


def test_other_ties_are_refused(tmp_path: Path) -> None:
    saved(tmp_path, tied=True)
    network = tiny.make_model(tied=False)
    with pytest.raises(CheckpointError, match=r"tied names are \{'head\.weight': 'embedding"):
        restored(tmp_path, network, tiny.make_optimizer(network))


def test_tied_tensors_are_written_once(tmp_path: Path) -> None:
    saver, _ = saved(tmp_path)
    index = dcp.read_index(tmp_path / "checkpoints/step-00000003/model")
    assert "head.weight" not in dcp.tensor_metadata(index)
    assert saver.model.head.weight is saver.model.embedding.weight


class Counting(torch.optim.SGD):
    """Keeps a plain number, or something that cannot be saved."""

    kept: object = 0

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state["count"] = state.get("count", 0) + 1
                if self.kept:
                    state["kept"] = self.kept


def test_plain_numbers_of_an_optimizer_come_back(tmp_path: Path) -> None:
    make: Make = lambda m: Counting(m.parameters(), lr=1e-2)  # noqa: E731
    saved(tmp_path, make)
    network = tiny.make_model(seed=9)
    optimizer = make(network)
    restored(tmp_path, network, optimizer)
    assert {state["count"] for state in optimizer.state.values()} == {3}


def test_what_cannot_be_saved_is_refused_with_its_name(tmp_path: Path) -> None:
    network = tiny.make_model()
    optimizer = Counting(network.parameters(), lr=1e-2)
    optimizer.kept = ["a list"]
    state = TrainState()
    tiny.train(network, optimizer, state, 1)
    saver = tiny.checkpoints(tmp_path, network, optimizer, asynchronous=False)
    with pytest.raises(CheckpointError, match=r"kept: the optimizer keeps a list, only tensors"):
        saver.save(state)

    class Extra(nn.Linear):
        def get_extra_state(self) -> dict[str, int]:
            return {"calls": 1}

    with pytest.raises(CheckpointError, match="_extra_state: a dict in the model's state"):
        collect_tensors(Extra(2, 2), [])


def test_wrappers_leave_no_trace_in_names() -> None:
    network = tiny.make_model()
    compiled = torch.compile(network)
    assert isinstance(compiled, nn.Module)
    assert unwrapped(compiled) is network
    assert clean_name("block._checkpoint_wrapped_module.0.weight") == "block.0.weight"
    assert collect_tensors(compiled, []).model.keys() == collect_tensors(network, []).model.keys()


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_replicated_tensors_are_shared_out_evenly(ranks: int) -> None:
    network = tiny.make_model(tied=False)
    optimizer = tiny.make_optimizer(network)
    tiny.train(network, optimizer, TrainState(), 1)
    tensors = collect_tensors(network, [optimizer])
    shares = [tensors_to_write(tensors, World(rank=r, world_size=ranks)) for r in range(ranks)]
    for part, everything in (("model", tensors.model), ("optimizer", tensors.optimizer)):
        names = [name for share in shares for name in share[part]]
        assert sorted(names) == sorted(everything)
    loads = [sum(t.nbytes for part in share.values() for t in part.values()) for share in shares]
    assert max(loads) - min(loads) <= max(t.nbytes for t in tensors.model.values())


def draw() -> tuple[float, float, float, float]:
    """One number of every generator that is saved."""
    return random.random(), np.random.rand(), random.gauss(0, 1), torch.rand(()).item()


def test_random_states_come_back(tmp_path: Path) -> None:
    np.random.standard_normal()  # leaves a cached second value behind
    random.gauss(0, 1)
    (tmp_path / "rng").write_bytes(rng.capture())
    expected = [draw(), (np.random.standard_normal(),)]
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    rng.restore(tmp_path / "rng")
    assert [draw(), (np.random.standard_normal(),)] == expected


def test_random_state_is_derived_from_seed_step_and_rank() -> None:
    def after(**numbers: int) -> tuple[float, ...]:
        rng.derive(**numbers)
        return draw()

    assert after(seed=1, step=2, rank=3) == after(seed=1, step=2, rank=3)
    others = [(1, 2, 4), (1, 3, 3), (2, 2, 3)]
    drawn = {after(seed=a, step=b, rank=c) for a, b, c in [(1, 2, 3), *others]}
    assert len(drawn) == 4


def test_file_without_random_state_is_refused(tmp_path: Path) -> None:
    for content in (b"", b"junk"):
        (tmp_path / "rng").write_bytes(content)
        with pytest.raises(CheckpointError, match="rng: holds no random generator states"):
            rng.restore(tmp_path / "rng")
    torch.save({"python": 1}, tmp_path / "rng")
    with pytest.raises(CheckpointError, match="rng: holds no random generator states"):
        rng.restore(tmp_path / "rng")


def test_directory_that_disagrees_with_itself_is_refused(tmp_path: Path) -> None:
    saver, _ = saved(tmp_path)
    found = saver.find("auto")
    assert found is not None
    state = found.directory / "state.json"
    state.write_text(state.read_text().replace('"step": 3', '"step": 2', 1))
    with pytest.raises(CheckpointError, match="says"):
        restore.load_state(found.directory, found.receipt)
    (found.directory / "tensors.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"tensors\.json: cannot be read"):
        restore.read_tensors_json(found.directory)
    (found.directory / "model/.metadata").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"\.metadata: cannot be read"):
        dcp.read_index(found.directory / "model")


@pytest.mark.parametrize("evil", [os.system, subprocess.run, random.Random, "dotted", "list"])
def test_index_runs_no_code(tmp_path: Path, evil: object) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return evil, (f"touch {tmp_path}/ran",)

    data = pickle.dumps([1] if evil == "list" else Evil() if callable(evil) else None)
    if evil == "dotted":  # os.system by way of a module that imports os
        data = (
            b"\x80\x04\x8c\x27torch.distributed.checkpoint.filesystem"
            b"\x8c\x09os.system\x93\x8c\x04true\x85R."
        )
    (tmp_path / ".metadata").write_bytes(data)
    words = "holds a list" if evil == "list" else "does not belong in it"
    with pytest.raises(CheckpointError, match=words):
        dcp.read_index(tmp_path)
    assert not (tmp_path / "ran").exists()
