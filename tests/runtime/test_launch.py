"""What a launch decides from the environment and the configuration, before and after Fabric."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from stream_pretrain.config.sections import ComputeConfig
from stream_pretrain.errors import ConfigError
from stream_pretrain.runtime.fsdp import BlockSharder
from stream_pretrain.runtime.launch import (
    _strategy,
    compute_faults,
    device_count,
    export_environment,
    launch,
    requested_world,
)
from stream_pretrain.schema import World

LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK")
OTHERS = ("SLURM_NTASKS", "SLURM_PROCID", "SLURM_JOB_NAME", "TORCHELASTIC_RUN_ID")


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = dict(os.environ)
    for name in (*LAUNCHERS, *OTHERS):
        monkeypatch.delenv(name, raising=False)
    yield
    for name in LAUNCHERS:
        os.environ.pop(name, None)
    os.environ.update({name: before[name] for name in LAUNCHERS if name in before})


def gpus(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: number)


def test_one_process_without_a_launcher() -> None:
    assert requested_world(ComputeConfig(accelerator="cpu")) == World()
    world = requested_world(ComputeConfig(devices=2, nodes=3))
    assert (world.world_size, world.local_world_size, world.nodes) == (6, 2, 3)


def test_a_launchers_numbers_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert requested_world(ComputeConfig(devices=1)).nodes == 2


def test_slurms_numbers_win_inside_srun_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_NTASKS", "8")
    monkeypatch.setenv("SLURM_NNODES", "2")
    assert requested_world(ComputeConfig(devices=1)).world_size == 1
    monkeypatch.setenv("SLURM_PROCID", "3")
    monkeypatch.setenv("SLURM_JOB_NAME", "pretrain")
    assert requested_world(ComputeConfig(devices=1)).world_size == 8
    monkeypatch.setenv("SLURM_JOB_NAME", "bash")
    assert requested_world(ComputeConfig(devices=1)).world_size == 1


def test_auto_takes_every_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 4)
    assert device_count(ComputeConfig()) == 4
    assert device_count(ComputeConfig(devices=2)) == 2


def test_more_gpus_than_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 4)
    (fault,) = compute_faults(ComputeConfig(devices=8), World(world_size=8, local_world_size=8))
    assert str(fault) == "compute.devices is 8: this machine has 4 GPUs; use at most that, or auto"
    assert compute_faults(ComputeConfig(devices=4), World(world_size=4, local_world_size=4)) == []


@pytest.mark.parametrize(("group", "fits"), [(1, False), (2, True), (3, False), (4, True)])
def test_hybrid_groups(group: int, fits: bool) -> None:
    compute = ComputeConfig(accelerator="cpu", strategy="hsdp", shard_group=group, devices=8)
    faults = compute_faults(compute, World(world_size=8, local_world_size=8))
    assert (faults == []) == fits


def test_hybrid_groups_on_two_ranks_have_no_size_that_fits() -> None:
    compute = ComputeConfig(accelerator="cpu", strategy="hsdp", devices=2)
    (fault,) = compute_faults(compute, World(world_size=2, local_world_size=2))
    assert "must be a part of more than 2 ranks" in str(fault)


def test_a_gpu_needs_a_c_compiler_for_compiled_blocks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    gpus(monkeypatch, 1)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    (fault,) = compute_faults(ComputeConfig(compile=True), World())
    assert "needs a compiler (gcc or clang) on the PATH" in str(fault)


def test_faults_of_the_machine_are_raised_by_a_launch_too() -> None:
    with pytest.raises(ConfigError, match="needs a GPU and none is visible"):
        launch(ComputeConfig(accelerator="auto", devices=1, precision="16-mixed"))


def test_a_launch_exports_who_it_is() -> None:
    fabric, world = launch(ComputeConfig(accelerator="cpu", devices=1))
    assert world == World()
    assert fabric.device.type == "cpu"
    assert {name: os.environ[name] for name in LAUNCHERS} == {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "NODE_RANK": "0",
    }
    export_environment(World(rank=3, world_size=4, local_rank=1, local_world_size=2, node_rank=1))
    assert os.environ["NODE_RANK"] == "1"


def test_deterministic_asks_torch_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    try:
        launch(ComputeConfig(accelerator="cpu", devices=1))
        assert not torch.are_deterministic_algorithms_enabled()
        launch(ComputeConfig(accelerator="cpu", devices=1, deterministic=True))
        assert torch.are_deterministic_algorithms_enabled()
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    finally:
        torch.use_deterministic_algorithms(False)


def test_several_nodes_need_a_launcher() -> None:
    with pytest.raises(ConfigError, match="needs torchrun or SLURM"):
        launch(ComputeConfig(accelerator="cpu", devices=1, nodes=2))


def test_auto_is_ddp_for_several_ranks_and_nothing_for_one() -> None:
    compute = ComputeConfig(accelerator="cpu")
    assert _strategy(compute, World(), False) == "auto"
    chosen = _strategy(compute, World(world_size=2, local_world_size=2), False)
    assert type(chosen).__name__ == "DDPStrategy"


def test_a_group_must_divide_the_ranks() -> None:
    with pytest.raises(ValueError, match="group must divide the 4 ranks, got 3"):
        BlockSharder(world_size=4, group=3, device_type="cpu")
