"""Measure what a checkpoint costs, and print one line per figure, or JSON.

Nothing is trained: tensors of the right shapes stand for a model of the given number of parameters
under AdamW.

    python benchmarks/checkpoint.py --parameters 110e6 --dir /some/disk [--json]

The stall is how long the loop waits for a save, the first one and later ones. It is compared with
one copy of the state in memory, with this package's synchronous save and with `fabric.save`. The
bytes of a checkpoint are compared with the bytes of the state. The restart is the time from
starting Python to the first step after a restore.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

from stream_pretrain.checkpoint.save import Checkpoints
from stream_pretrain.checkpoint.state import TrainState
from stream_pretrain.checkpoint.tensors import collect_tensors
from stream_pretrain.config.sections import CheckpointConfig
from stream_pretrain.schema import World
from stream_pretrain.storage.store import open_store
from stream_pretrain.units import parse_count

WIDTH, HIDDEN, VOCABULARY = 768, 3072, 50304
SAVES = 6


class Block(nn.Module):
    """The matrices of a transformer block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = nn.Linear(WIDTH, 3 * WIDTH)
        self.project = nn.Linear(WIDTH, WIDTH)
        self.up = nn.Linear(WIDTH, HIDDEN)
        self.down = nn.Linear(HIDDEN, WIDTH)


def make(parameters: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Make a model of about `parameters` parameters and its AdamW."""
    block = sum(p.numel() for p in Block().parameters())
    count = max(1, round((parameters - WIDTH * VOCABULARY) / block))
    model = nn.ModuleList([nn.Embedding(VOCABULARY, WIDTH), *(Block() for _ in range(count))])
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4)


def update(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """One optimizer step with small gradients."""
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1e-3)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def make_checkpoints(
    directory: Path, model: nn.Module, optimizer: torch.optim.Optimizer, *, asynchronous: bool
) -> Checkpoints:
    """Return this package's `Checkpoints` for a local run directory."""
    return Checkpoints(
        run=open_store(directory),
        staging=directory,
        config=CheckpointConfig(asynchronous=asynchronous, keep_last=1),
        world=World(),
        model=model,
        optimizer=optimizer,
    )


def measure(parameters: int, directory: Path) -> dict[str, float]:
    """Return all figures, in seconds and bytes."""
    model, optimizer = make(parameters)
    asynchronous = make_checkpoints(directory / "async", model, optimizer, asynchronous=True)
    update(model, optimizer)
    tensors = collect_tensors(model, [optimizer])
    all_tensors = [*tensors.model.values(), *tensors.optimizer.values()]
    copy = Copy(all_tensors)
    figures: dict[str, float] = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "state_bytes": sum(t.nbytes for t in all_tensors),
    }
    figures |= saves("async", asynchronous, copy)
    figures["async_behind_s"] = asynchronous.longest_save_s
    synchronous = make_checkpoints(directory / "sync", model, optimizer, asynchronous=False)
    figures |= saves("sync", synchronous, copy)
    files = [p for p in (directory / "async").rglob("*") if p.is_file() and "step-" in str(p)]
    figures["written_over_state"] = sum(p.stat().st_size for p in files) / figures["state_bytes"]
    figures["fabric_save_s"] = fabric_save(directory / "fabric", model, optimizer)
    figures |= restart(parameters, directory / "async")
    return figures


class Copy:
    """Copies all tensors into memory that is already allocated, to compare a stall with."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.tensors = tensors
        self.buffers = [torch.zeros_like(tensor) for tensor in tensors]

    def seconds(self) -> float:
        """Return the seconds that one copy takes now."""
        started = time.perf_counter()
        for buffer, tensor in zip(self.buffers, self.tensors, strict=True):
            buffer.copy_(tensor)
        return time.perf_counter() - started


def saves(name: str, saver: Checkpoints, copy: Copy) -> dict[str, float]:
    """Measure saves while no other one is running, each after a copy for comparison."""
    stalls, copies = [], []
    for step in range(1, SAVES + 1):
        copies.append(copy.seconds())
        stalls.append(saver.save(TrainState(step=step, data_step=step)))
        saver.wait()
    saver.close()
    ratios = [stall / one for stall, one in zip(stalls, copies, strict=True)]
    return {
        f"{name}_stall_first_s": stalls[0],
        f"{name}_stall_median_s": statistics.median(stalls),
        f"{name}_stall_best_s": min(stalls),
        f"{name}_copy_best_s": min(copies),
        f"{name}_first_over_copy": ratios[0],
        f"{name}_median_over_copy": statistics.median(ratios),
    }


def fabric_save(directory: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    """Return the seconds that `fabric.save` takes for the same state, the better of two."""
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    seconds = []
    for turn in range(2):
        started = time.perf_counter()
        fabric.save(directory / f"{turn}.ckpt", {"model": model, "optimizer": optimizer})
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def restart(parameters: int, run: Path) -> dict[str, float]:
    """Return the seconds from starting Python to the first update after a restore, by part."""
    command = [sys.executable, __file__, "--parameters", str(parameters), "--resume", str(run)]
    started = time.perf_counter()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    total = time.perf_counter() - started
    parts: dict[str, float] = json.loads(done.stdout)
    rest = total - sum(parts.values())
    return {"restart_s": total, "restart_python_s": rest, **parts}


def resume(parameters: int, run: Path) -> dict[str, float]:
    """Do what a restarted process does: build, find, verify, restore, update once."""
    times = [time.perf_counter()]
    model, optimizer = make(parameters)
    saver = make_checkpoints(run, model, optimizer, asynchronous=True)
    times.append(time.perf_counter())
    checkpoint = saver.find("auto")
    assert checkpoint is not None
    times.append(time.perf_counter())
    saver.restore(checkpoint)
    times.append(time.perf_counter())
    update(model, optimizer)
    times.append(time.perf_counter())
    saver.close()
    names = ("make", "find_and_hash", "restore", "first_update")
    spans = zip(names, itertools.pairwise(times), strict=True)
    return {f"restart_{name}_s": end - begin for name, (begin, end) in spans}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else "")
    parser.add_argument("--parameters", type=parse_count, default=110_000_000)
    parser.add_argument("--dir", type=Path, default=None, help="a directory on the disk to measure")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--resume", type=Path, default=None, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.resume is not None:
        print(json.dumps(resume(arguments.parameters, arguments.resume)))
        return
    with tempfile.TemporaryDirectory(dir=arguments.dir) as directory:
        figures = measure(arguments.parameters, Path(directory))
    if arguments.json:
        print(json.dumps(figures, indent=2))
        return
    for name, value in figures.items():
        print(f"{name:24} {value:,.3f}")


if __name__ == "__main__":
    main()
