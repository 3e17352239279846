"""Does resume hold for this configuration, on this machine? In: `fit` arguments. Out: two runs
compared, one of them killed.

Both are real child processes of `stream-pretrain fit`; the kills are SIGKILLs at steps drawn from
the run's seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stream_pretrain.audit import subprocess_runs
from stream_pretrain.audit.compare_runs import FinalState, differences, ending
from stream_pretrain.storage.store import open_store


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """An uninterrupted and a killed run of the same configuration."""

    whole: FinalState
    interrupted: FinalState
    killed_after: tuple[int, ...]
    differences: tuple[str, ...]


def selftest(
    config: str,
    out: Path,
    *,
    steps: int,
    kills: int,
    seed: int,
    say: Callable[[str], None],
) -> Comparison:
    """Train `steps` steps of a configuration (its YAML) twice below `out`, the second time killed
    `kills` times.
    """
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.yaml").write_text(config)
    argv = ["--config", str(out / "config.yaml")]
    say(f"training {steps} steps without interruption …")
    subprocess_runs.run(
        subprocess_runs.FIT, _arguments(argv, out / "whole", steps), out / "whole.log"
    )
    killed_after = []
    for kill_at in kill_steps(steps, kills, seed):
        killed_after.append(_train_killed(argv, out, steps, kill_at))
        say(f"killed with SIGKILL after step {killed_after[-1]} …")
    interrupted = out / "interrupted"
    subprocess_runs.run(
        subprocess_runs.FIT, _arguments(argv, interrupted, steps), out / "interrupted.log"
    )
    whole, other = (ending(open_store(path)) for path in (out / "whole", interrupted))
    return Comparison(
        whole=whole,
        interrupted=other,
        killed_after=tuple(killed_after),
        differences=tuple(differences(whole, other)),
    )


def kill_steps(steps: int, kills: int, seed: int) -> list[int]:
    """Ascending steps to kill at, none of them the last."""
    possible = range(1, steps)
    return sorted(random.Random(seed).sample(possible, min(kills, len(possible))))


def _arguments(argv: Sequence[str], run: Path, steps: int) -> list[str]:
    """The configuration with a run directory of its own, frequent saves and every step written at
    once.
    """
    changes = {
        "run.dir": str(run),
        "stop.max_steps": str(steps),
        "checkpoint.every": str(max(1, steps // 5)),
        "logging.every": "1",
    }
    return [*argv, *(word for key, value in changes.items() for word in (f"--{key}", value))]


def _train_killed(argv: Sequence[str], out: Path, steps: int, kill_at: int) -> int:
    metrics = out / "interrupted" / "metrics.jsonl"
    subprocess_runs.run_and_kill(
        subprocess_runs.FIT,
        _arguments(argv, out / "interrupted", steps),
        out / "interrupted.log",
        lambda: subprocess_runs.last_step(metrics) >= kill_at,
    )
    return subprocess_runs.last_step(metrics)
