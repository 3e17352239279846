"""`stream-pretrain fit` and `plan`. In: a loaded configuration. Out: an exit code. Assembly and
loop do the work.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import Any, NoReturn

from stream_pretrain.runtime.stop import EXIT_STOPPED, SignalFlag, kill_children
from stream_pretrain.train import run_dir
from stream_pretrain.train.assembly import assembled
from stream_pretrain.train.loop import train
from stream_pretrain.train.prepare import Prepared, prepare
from stream_pretrain.train.trainer import COMPLETE, TIME_UP, Trainer

FINISHED = (COMPLETE, TIME_UP)


def fit(loaded: Any) -> int:
    """Train, or go on training. 0: finished, 75: stopped by a signal or deadline with a whole
    checkpoint.
    """
    ranks = 1
    signals = SignalFlag()
    signals.install()
    try:
        with assembled(prepare(loaded.config), signals) as job:
            ranks = job.plan.world.world_size
            code = run(job)
    finally:
        signals.remove()
        kill_children()
    if ranks > 1:
        leave(code)
    return code


def leave(code: int) -> NoReturn:
    """End a rank without the interpreter's own ending, in which gloo's threads abort the process
    now and then.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run(job: Trainer) -> int:
    """Train a job to its end and say how it ended."""
    if job.stop_reason() == COMPLETE:
        job.observer.print_line(f"nothing to do: the run is finished at step {job.state.step}")
        return 0
    reason = train(job)
    return conclude(job, reason)


def conclude(job: Trainer, reason: str) -> int:
    """Write down how the process ended; its exit code. Only rank 0 may leave with 75.

    A launcher kills rank 0 as soon as another rank leaves with anything but 0.
    """
    code = 0 if reason in FINISHED else EXIT_STOPPED
    if not job.plan.world.is_rank0:
        return 0
    job.observer.stop(step=job.state.step, reason=reason, digest=job.state.digest)
    run_dir.write_stop(job.run, code=code, reason=reason, step=job.state.step)
    if code == EXIT_STOPPED:
        job.observer.print_line(
            f"stopped by {reason} at step {job.state.step}; run the same command to go on"
        )
    return code


def show_plan(loaded: Any) -> int:
    """Print what would be done."""
    prepared = prepare(loaded.config)
    json.dump(summary(prepared), sys.stdout, indent=2)
    sys.stdout.write("\n")
    return 0


def summary(prepared: Prepared) -> dict[str, Any]:
    """The plan in plain JSON values."""
    planned = prepared.plan
    return {
        "model": asdict(planned.model),
        "world_size": planned.world.world_size,
        "seq_len": planned.seq_len,
        "global_batch": planned.global_batch,
        "micro_batch": planned.micro_batch,
        "micro_steps": planned.micro_steps,
        "tokens_per_step": planned.tokens_per_step,
        "steps_per_epoch": planned.steps_per_epoch,
        "total_steps": planned.total_steps,
        "total_tokens": planned.total_tokens,
        "warmup_steps": planned.warmup_steps,
        "decay_steps": planned.decay_steps,
        "order": asdict(planned.order),
        "streams": [
            {"name": s.name, "location": s.location, "samples": s.samples, "shards": s.shards}
            for s in planned.streams
        ],
        "validation": dict(planned.validation_samples),
    }
