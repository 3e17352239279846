"""Runs stages of training on several ranks, forked from one process that has imported everything.

`python checkpoint_ranks.py STAGES.json OUT.json`: each stage is a dictionary (run, kind, ranks,
steps, save); OUT gets, per stage, rank 0's losses, fingerprints after restore and at the end,
digest, and error.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import tiny_run as tiny
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from stream_pretrain.checkpoint.save import Checkpoints
from stream_pretrain.checkpoint.state import TrainState
from stream_pretrain.config.sections import CheckpointConfig
from stream_pretrain.schema import World
from stream_pretrain.storage.store import open_store


def wrapped(kind: str, ranks: int) -> nn.Module:
    """A fresh model under a strategy; other weights than the run began with."""
    model = tiny.make_model(seed=7)
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
    if kind == "fsdp2":
        mesh = init_device_mesh("cpu", (ranks,))
        fully_shard(model.block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model


def add_up(loss: Tensor) -> None:
    """Sum over all ranks."""
    dist.all_reduce(loss)


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
    model = wrapped(stage["kind"], ranks)
    if not stage.get("resume", True):
        torch.manual_seed(0)
    optimizer = tiny.make_optimizer(model)
    saver = Checkpoints(
        run=open_store(stage["run"]),
        staging=Path(stage.get("staging", "/nonexistent").format(node=world.node_rank)),
        config=CheckpointConfig(),
        world=world,
        group=dist.new_group(backend="gloo"),
        model=model,
        optimizer=optimizer,
    )
    found = saver.find("auto")
    state = saver.restore(found) if found else TrainState()
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
