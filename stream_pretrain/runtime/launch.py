"""Start the processes of a run. In: `ComputeConfig`. Out: Fabric and this process's `World`. Does
not touch data.

Streaming reads only the environment, and Fabric's launchers set different parts of it or none
(TRAPS B), so after the launch every variable is exported, on every rank, for the life of the
process. `LOCAL_RANK` is never set before it: Fabric would wait for peers that never come.
"""

from __future__ import annotations

import logging
import os
import shutil
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

from stream_pretrain.errors import ConfigError, Fault, TrainingError
from stream_pretrain.schema import World

if TYPE_CHECKING:
    from lightning.fabric import Fabric
    from lightning.fabric.strategies.strategy import Strategy

    from stream_pretrain.config.sections import ComputeConfig


def requested_world(compute: ComputeConfig) -> World:
    """The world that a launch will give, as seen from rank 0, before anything is started.

    Under torchrun or SLURM the scheduler's own numbers win over the configuration's.
    """
    environment = os.environ
    if "WORLD_SIZE" in environment and "LOCAL_WORLD_SIZE" in environment:
        return World(
            world_size=int(environment["WORLD_SIZE"]),
            local_world_size=int(environment["LOCAL_WORLD_SIZE"]),
        )
    if under_slurm():
        tasks = int(environment["SLURM_NTASKS"])
        nodes = int(environment.get("SLURM_NNODES", environment.get("SLURM_JOB_NUM_NODES", "1")))
        return World(world_size=tasks, local_world_size=tasks // nodes)
    local = device_count(compute)
    return World(world_size=local * compute.nodes, local_world_size=local)


def under_slurm() -> bool:
    """True in a process that `srun` started as a task (an interactive shell does not count)."""
    name = os.environ.get("SLURM_JOB_NAME")
    return (
        "SLURM_NTASKS" in os.environ
        and "SLURM_PROCID" in os.environ
        and name not in ("bash", "interactive")
    )


def device_count(compute: ComputeConfig) -> int:
    """Devices per node: the configured number, or every GPU, or one CPU process."""
    import torch

    if compute.devices == "auto":
        return max(1, torch.cuda.device_count())
    return int(compute.devices)


def uses_cuda(compute: ComputeConfig) -> bool:
    """Whether the run is on GPUs."""
    import torch

    wanted = compute.accelerator
    return wanted == "cuda" or (wanted == "auto" and torch.cuda.device_count() > 0)


def compute_faults(compute: ComputeConfig, world: World) -> list[Fault]:
    """What this machine, or a world of this size, cannot do of what the section asks for."""
    return [
        *_device_faults(compute),
        *_sharding_faults(compute, world),
        *_precision_faults(compute),
        *_compiler_faults(compute),
    ]


def _device_faults(compute: ComputeConfig) -> Iterator[Fault]:
    import torch

    if not uses_cuda(compute):
        return
    available = torch.cuda.device_count()
    if available == 0:
        remedy = "no GPU is visible; use cpu or auto"
        yield Fault(path="compute.accelerator", found=compute.accelerator, remedy=remedy)
    elif device_count(compute) > available:
        remedy = f"this machine has {available} GPUs; use at most that, or auto"
        yield Fault(path="compute.devices", found=str(compute.devices), remedy=remedy)


def _sharding_faults(compute: ComputeConfig, world: World) -> Iterator[Fault]:
    """Sharding needs several ranks, hybrid sharding groups of more than one and fewer than all."""
    ranks = world.world_size
    if compute.strategy in ("fsdp2", "hsdp") and ranks == 1:
        remedy = "has no effect in one process; raise compute.devices, or use auto"
        yield Fault(path="compute.strategy", found=compute.strategy, remedy=remedy)
    elif compute.strategy == "hsdp":
        group = shard_group(compute, world)
        if ranks % group or group in (1, ranks):
            found = f"{group}" if compute.shard_group else f"null, which means {group} here"
            groups = [n for n in range(2, ranks) if ranks % n == 0]
            within = f"{' or '.join(map(str, groups))} of the" if groups else "a part of more than"
            remedy = f"must be {within} {ranks} ranks; to shard over all use fsdp2, over none ddp"
            yield Fault(path="compute.shard_group", found=found, remedy=remedy)


def _precision_faults(compute: ComputeConfig) -> Iterator[Fault]:
    if compute.precision == "16-mixed" and not uses_cuda(compute):
        remedy = "needs a GPU and none is visible; on a CPU use bf16-mixed or 32"
        yield Fault(path="compute.precision", found=compute.precision, remedy=remedy)


def _compiler_faults(compute: ComputeConfig) -> Iterator[Fault]:
    """torch.compile makes C++ for a CPU, and Triton C for its launchers on a GPU."""
    if not compute.compile:
        return
    names = [os.environ.get("CC"), "gcc", "clang"] if uses_cuda(compute) else []
    names = names or [os.environ.get("CXX"), "g++", "clang++"]
    if not any(name and shutil.which(name) for name in names):
        remedy = (
            f"needs a compiler ({names[1]} or {names[2]}) on the PATH; install one, or use false"
        )
        yield Fault(path="compute.compile", found="true", remedy=remedy)


def shard_group(compute: ComputeConfig, world: World) -> int:
    """Ranks that share one copy of the model under `hsdp`."""
    return compute.shard_group or world.local_world_size


def launch(compute: ComputeConfig) -> tuple[Fabric, World]:
    """Launch through Fabric and export the environment; this process's place in the world."""
    from lightning.fabric import Fabric

    _quieten()
    expected = requested_world(compute)
    if faults := [*compute_faults(compute, expected), *_launcher_faults(expected)]:
        raise ConfigError.of(faults)
    cuda = uses_cuda(compute)
    if compute.deterministic:
        _be_deterministic()
    fabric = Fabric(
        accelerator="cuda" if cuda else "cpu",
        devices=expected.local_world_size,
        num_nodes=expected.nodes,
        strategy=_strategy(compute, expected, cuda),
        precision=compute.precision,
    )
    fabric.launch()
    world = World(
        rank=fabric.global_rank,
        world_size=fabric.world_size,
        local_rank=fabric.local_rank,
        local_world_size=expected.local_world_size,
        node_rank=fabric.node_rank,
    )
    if world.world_size != expected.world_size:
        raise TrainingError(
            f"The launcher started {world.world_size} processes, the configuration asks for "
            f"{expected.world_size}. Set compute.devices and "
            "compute.nodes to what the launcher starts."
        )
    export_environment(world)
    return fabric, world


def _launcher_faults(world: World) -> list[Fault]:
    """Fabric alone would wait for other machines that nobody starts."""
    if world.nodes == 1 or "TORCHELASTIC_RUN_ID" in os.environ or under_slurm():
        return []
    remedy = "more than one node needs torchrun or SLURM, which start a process for each device"
    return [Fault(path="compute.nodes", found=str(world.nodes), remedy=remedy)]


def _be_deterministic() -> None:
    """Only deterministic kernels. cuBLAS reads its variable when the first handle is made."""
    import torch

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False


def export_environment(world: World) -> None:
    """Write the world where streaming looks for it."""
    os.environ.update(
        RANK=str(world.rank),
        WORLD_SIZE=str(world.world_size),
        LOCAL_RANK=str(world.local_rank),
        LOCAL_WORLD_SIZE=str(world.local_world_size),
        NODE_RANK=str(world.node_rank),
    )


def _strategy(compute: ComputeConfig, world: World, cuda: bool) -> str | Strategy:
    """Fabric's strategy for the configured name; one process needs none."""
    from lightning.fabric.strategies.ddp import DDPStrategy
    from lightning.fabric.strategies.model_parallel import ModelParallelStrategy

    name = compute.strategy
    if name == "auto":
        name = "ddp" if world.world_size > 1 else "auto"
    if name == "auto":
        return "auto"
    backend = None if cuda else "gloo"
    if name == "ddp":
        # With three or more ranks DDP rebuilds its buckets after the first backward, which would
        # make the first step after a restart differ in its last bits; looking for unused parameters
        # keeps the first buckets.
        return DDPStrategy(
            process_group_backend=backend, find_unused_parameters=world.world_size > 2
        )
    from stream_pretrain.runtime.fsdp import BlockSharder

    group = world.world_size
    if name == "hsdp":
        group = shard_group(compute, world)
    sharder = BlockSharder(
        world_size=world.world_size, group=group, device_type="cuda" if cuda else "cpu"
    )
    return ModelParallelStrategy(
        parallelize_fn=sharder,
        data_parallel_size=world.world_size,
        tensor_parallel_size=1,
        process_group_backend=backend,
    )


def _quieten() -> None:
    """Fabric's hints speak of its own flags, which a reader of this program cannot set."""
    logging.getLogger("lightning.fabric").setLevel(logging.ERROR)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message=".*isinstance.treespec, LeafSpec.*")
    warnings.filterwarnings("ignore", module="lightning.*", message=".*srun.*")
