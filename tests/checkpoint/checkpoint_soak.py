"""Kill saving processes at random instants and restart them, a given number of times.

`python checkpoint_soak.py --run LOCATION --staging DIR --kills N [--ranks R --kind fsdp2]`

Every start must find a whole checkpoint, and restore exactly what an uninterrupted run has at that
step: the last line printed is a JSON summary. Children are forked from this process, which has
imported everything and used nothing, so that a start takes a tenth of a second.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import checkpoint_ranks
import tiny_run as tiny
import torch
import torch._dynamo  # loaded by the first optimizer, at the cost of a second in every child
import torch.distributed as dist

from stream_pretrain.checkpoint.save import Checkpoints
from stream_pretrain.checkpoint.state import TrainState
from stream_pretrain.config.sections import CheckpointConfig, StorageConfig
from stream_pretrain.schema import World
from stream_pretrain.storage.store import open_store

FORK = multiprocessing.get_context("fork")


def log_event(log: Path, **facts: Any) -> None:
    """Append one line to the log, at once."""
    with log.open("a") as file:
        file.write(json.dumps(facts) + "\n")


def make(options: argparse.Namespace, rank: int, rendezvous: str) -> tuple[Any, Any, World, Any]:
    """Model, optimizer, world and group of one rank."""
    torch.set_num_threads(1)
    world = World(
        rank=rank, world_size=options.ranks, local_rank=rank, local_world_size=options.ranks
    )
    group = None
    if options.ranks > 1:
        dist.init_process_group(
            "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=options.ranks
        )
        group = dist.new_group(backend="gloo")
        model = checkpoint_ranks.wrapped(options.kind, options.ranks)
    else:
        model = tiny.make_model(seed=7)
    return model, tiny.make_optimizer(model), world, group


def loss_reduction(options: argparse.Namespace) -> Any:
    """Return the function that sums a loss over ranks."""
    return checkpoint_ranks.add_up if options.ranks > 1 else lambda _: None


def victim(options: argparse.Namespace, rank: int, rendezvous: str, log: Path, last: int) -> None:
    """Resume, then train and save every step until killed, or until step `last`."""
    model, optimizer, world, group = make(options, rank, rendezvous)
    saver = Checkpoints(
        run=open_store(options.run, StorageConfig(retries=4, timeout=10.0)),
        staging=Path(options.staging),
        config=CheckpointConfig(keep_last=2),
        world=world,
        group=group,
        model=model,
        optimizer=optimizer,
        warn=lambda message: log_event(log, event="warning", message=message),
    )
    checkpoint = saver.find("auto")
    state = saver.restore(checkpoint) if checkpoint else TrainState()
    seen = tiny.fingerprint(model, optimizer)
    if rank == 0:
        log_event(log, event="start", step=state.step, seen=seen, digest=state.digest)
    while state.step < last:
        losses = tiny.train(
            model, optimizer, state, 1, world=world, reduce_loss=loss_reduction(options)
        )
        saver.save(state)
        if rank == 0:
            log_event(log, event="step", step=state.step, loss=losses[0])
    saver.close()
    seen = tiny.fingerprint(model, optimizer)
    if rank == 0:
        log_event(log, event="end", step=state.step, seen=seen, digest=state.digest)


def witness(options: argparse.Namespace, rank: int, rendezvous: str, log: Path, last: int) -> None:
    """The uninterrupted run, without saves."""
    model, optimizer, world, _ = make(options, rank, rendezvous)
    state = TrainState()
    for step in range(last + 1):
        seen = tiny.fingerprint(model, optimizer)
        if rank == 0:
            log_event(log, event="start", step=step, seen=seen, digest=state.digest)
        losses = tiny.train(
            model, optimizer, state, 1, world=world, reduce_loss=loss_reduction(options)
        )
        if rank == 0:
            log_event(log, event="step", step=state.step, loss=losses[0])


def entry(work: Any, log: Path, *arguments: Any) -> None:
    """A forked child: its error goes to the log."""
    try:
        work(*arguments)
    except BaseException as error:
        # A rank that lives a little longer than its peer sees the connection go.
        peer_gone = "Connection closed by peer" in str(error) or "Connection reset" in str(error)
        log_event(
            log,
            event="peer_gone" if peer_gone else "error",
            error=f"{type(error).__name__}: {error}",
        )
        os._exit(1)
    os._exit(0)


def launch(work: Any, options: argparse.Namespace, log: Path, last: int) -> list[Any]:
    """Fork all ranks."""
    rendezvous = tempfile.mktemp()
    children = [
        FORK.Process(target=entry, args=(work, log, options, rank, rendezvous, log, last))
        for rank in range(options.ranks)
    ]
    for child in children:
        child.start()
    return children


def kill_all(children: list[Any], rng: random.Random) -> bool:
    """SIGKILL to every rank, in random order; False when they had already ended."""
    alive = [child for child in children if child.is_alive()]
    rng.shuffle(alive)
    for child in alive:
        os.kill(child.pid, signal.SIGKILL)
        time.sleep(rng.choice([0, 0, 0.02]))
    for child in children:
        child.join()
    return bool(alive)


def in_save(options: argparse.Namespace) -> bool:
    """Whether a save had begun and was not finished (on the disk of this machine)."""
    roots = [Path(options.staging)] + ([Path(options.run)] if "://" not in options.run else [])
    return any(path for root in roots for path in root.rglob(".saving-*"))


def read(log: Path) -> list[dict[str, Any]]:
    """All events of a log."""
    if not log.exists():
        return []
    lines = log.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def wait_for_start(log: Path, before: int) -> None:
    """Return when the children have restored, or after half a minute."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        if sum(event["event"] in ("start", "error") for event in read(log)) > before:
            return
        time.sleep(0.01)


def soak(options: argparse.Namespace) -> dict[str, Any]:
    """Kill, restart, compare."""
    rng = random.Random(options.seed)
    log = Path(tempfile.mktemp())
    mid_save = kills = 0
    while kills < options.kills:
        before = sum(event["event"] == "start" for event in read(log))
        children = launch(victim, options, log, 10**9)
        if rng.random() < 0.9:  # else killed while it starts
            wait_for_start(log, before)
        time.sleep(rng.uniform(0, options.longest))
        if kill_all(children, rng):
            kills += 1
            mid_save += in_save(options)
        if any(event["event"] == "error" for event in read(log)):
            break
    last = max((e["step"] for e in read(log) if e["event"] == "step"), default=0) + 3
    for child in launch(victim, options, log, last):
        child.join()
    expected = Path(tempfile.mktemp())
    for child in launch(witness, options, expected, last):
        child.join()
    return summary(read(log), read(expected), kills, mid_save)


def summary(
    events: list[dict[str, Any]], expected: list[dict[str, Any]], kills: int, mid_save: int
) -> dict[str, Any]:
    """Counts, and every restart, loss or end that differs from the uninterrupted run's."""
    whole = {e["step"]: (e["seen"], e["digest"]) for e in expected if e["event"] == "start"}
    losses = {e["step"]: e["loss"] for e in expected if e["event"] == "step"}
    starts = [e for e in events if e["event"] in ("start", "end")]
    steps = [e for e in events if e["event"] == "step"]
    wrong = [e for e in starts if (e["seen"], e["digest"]) != whole.get(e["step"])]
    wrong += [e for e in steps if e["loss"] != losses.get(e["step"])]
    return {
        "kills": kills,
        "mid_save": mid_save,
        "restarts": len(starts) - 1,
        "resumed_beyond_zero": sum(e["step"] > 0 for e in starts if e["event"] == "start"),
        "last_step": max((e["step"] for e in starts), default=0),
        "ended": any(e["event"] == "end" for e in events),
        "wrong": wrong[:5],
        "warnings": [e["message"] for e in events if e["event"] == "warning"],
        "errors": [e["error"] for e in events if e["event"] == "error"],
    }


def main() -> int:
    """Run one soak and print its summary."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", required=True)
    parser.add_argument("--staging", required=True)
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--kind", default="fsdp2")
    parser.add_argument("--longest", type=float, default=0.8, help="seconds a child lives at most")
    parser.add_argument("--seed", type=int, default=0)
    result = soak(parser.parse_args())
    print(json.dumps(result))
    return 0 if result["ended"] and not result["wrong"] and not result["errors"] else 1


if __name__ == "__main__":
    sys.exit(main())
