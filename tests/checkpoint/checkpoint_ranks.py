"""Run stages of training on several ranks, forked from one process that has imported everything.

`python checkpoint_ranks.py STAGES.json OUT.json`: each stage is a dictionary (run, kind, ranks,
steps, save_each). OUT gets, for each stage and rank, the losses, the fingerprints after restore and
at the end, the digest, or the error.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tiny_run as tiny
import torch
import torch._dynamo  # loaded by the first optimizer, at the cost of a second in every child
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from stream_pretrain.checkpoint import save_directory
from stream_pretrain.checkpoint.rank_group import RankGroup
from stream_pretrain.checkpoint.save import Checkpoints
from stream_pretrain.checkpoint.state import TrainState
from stream_pretrain.config.sections import CheckpointConfig
from stream_pretrain.errors import OwnerError, StorageError
from stream_pretrain.schema import World
from stream_pretrain.storage.store import open_store


def wrapped(kind: str, ranks: int) -> nn.Module:
    """Make a model under a strategy; its weights differ from those the run began with."""
    model = tiny.make_model(seed=7)
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
    if kind in ("fsdp2", "hsdp"):
        shape, names = ((2, ranks // 2), ("copy", "shard")) if kind == "hsdp" else ((ranks,), None)
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        fully_shard(model.block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model


def add_up(loss: Tensor) -> None:
    """Sum over all ranks."""
    dist.all_reduce(loss)


def raised(action: Callable[[], object]) -> str:
    """Class and message of what an action raises."""
    try:
        action()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def fail_on(rank: int, world: World, error: Exception) -> str:
    """Raise on one rank."""
    if world.rank == rank:
        raise error
    return f"value of {world.rank}"


def exchange_objects(world: World) -> dict[str, Any]:
    """Exchange values and errors between ranks."""
    ranks = RankGroup(world, dist.new_group(backend="gloo"))
    full = StorageError("disk is full", "full")
    return {
        "all_ranks": ranks.all_ranks(lambda: world.rank * 10),
        "rank0": ranks.rank0(lambda: f"from {world.rank}"),
        "scatter": ranks.scatter(lambda: ["zero", "one"]),
        "all_ranks raises": raised(lambda: ranks.all_ranks(lambda: fail_on(1, world, full))),
        "rank0 raises": raised(lambda: ranks.rank0(lambda: fail_on(0, world, KeyError("x")))),
        "scatter raises": raised(
            lambda: ranks.scatter(lambda: [fail_on(0, world, OwnerError("taken"))])
        ),
        "after": ranks.rank0(lambda: "still in step"),
    }


def failing_save(
    saver: Checkpoints, rank: int, model: nn.Module, optimizer: Any, world: World
) -> dict[str, Any]:
    """A save that fails on one rank fails on all, and the next one works."""
    state = TrainState()
    tiny.train(model, optimizer, state, 1, world=world, reduce_loss=add_up)
    real = save_directory.write_file

    def broken(path: Path, data: bytes) -> None:
        if path.name == f"rng-{rank:05d}.pt":
            raise OSError(28, "No space left on device")
        real(path, data)

    save_directory.write_file = broken  # the fault, on every rank
    saver.save(state)
    error = raised(saver.wait)
    save_directory.write_file = real
    saver.save(state)
    saver.close()
    return {"error raised": error, "saved": saver.saved_step}


def run_stage(stage: dict[str, Any], rank: int, rendezvous: str) -> dict[str, Any]:
    """One rank's part of a stage."""
    ranks = stage["ranks"]
    world = World(
        rank=rank,
        world_size=ranks,
        local_rank=rank % stage.get("local", ranks),
        local_world_size=stage.get("local", ranks),
        node_rank=rank // stage.get("local", ranks),
    )
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=ranks)
    if stage["kind"] == "rank_group":
        return exchange_objects(world)
    model = wrapped(stage["kind"], ranks)
    if not stage.get("resume", True):
        torch.manual_seed(0)
    optimizer = tiny.make_optimizer(model)
    saver = Checkpoints(
        run=open_store(stage["run"].format(node=world.node_rank)),
        staging=Path(stage.get("staging", "/nonexistent").format(node=world.node_rank)),
        config=CheckpointConfig(),
        world=world,
        group=dist.new_group(backend="gloo"),
        model=model,
        optimizer=optimizer,
    )
    if stage.get("fail"):
        return failing_save(saver, stage["fail"], model, optimizer, world)
    checkpoint = saver.find("auto")
    state = saver.restore(checkpoint) if checkpoint else TrainState()
    restored = tiny.fingerprint(model, optimizer)
    losses = []
    for _ in range(stage["steps"]):
        losses += tiny.train(model, optimizer, state, 1, world=world, reduce_loss=add_up)
        if stage.get("save_each"):
            saver.save(state)
    saver.save(state)
    saver.close()
    return {
        "step": state.step,
        "losses": losses,
        "restored": restored,
        "end": tiny.fingerprint(model, optimizer),
        "digest": state.digest,
        "random": torch.rand(4).tolist(),
    }


def child(stage: dict[str, Any], rank: int, rendezvous: str, out: str) -> None:
    """Entry of a forked rank."""
    torch.set_num_threads(1)
    try:
        result = run_stage(stage, rank, rendezvous)
    except Exception:
        result = {"error": traceback.format_exc()}
    Path(f"{out}.{rank}").write_text(json.dumps(result))


def main(stages_file: str, out: str) -> None:
    """Run all stages one after the other."""
    context = multiprocessing.get_context("fork")
    results = []
    for stage in json.loads(Path(stages_file).read_text()):
        with tempfile.TemporaryDirectory() as directory:
            arguments = (stage, f"{directory}/rendezvous", f"{directory}/out")
            children = [
                context.Process(target=child, args=(stage, rank, *arguments[1:]))
                for rank in range(stage["ranks"])
            ]
            for process in children:
                process.start()
            for process in children:
                process.join(120)
                if process.is_alive():
                    process.kill()
            files = [Path(f"{directory}/out.{rank}") for rank in range(stage["ranks"])]
            results.append(
                [json.loads(f.read_text()) if f.exists() else {"error": "died"} for f in files]
            )
    Path(out).write_text(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
