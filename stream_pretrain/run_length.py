"""Compute the length of a run, its warm-up and its decay in steps.

The functions take the configuration, the tokens per step and the steps per epoch. Everything that
does not fit together is appended to a list of faults.
"""

from __future__ import annotations

import math

from stream_pretrain.config.sections import Config
from stream_pretrain.config.types import TrainingDuration
from stream_pretrain.errors import Fault


def count_total_steps(config: Config, tokens_per_step: int, steps_per_epoch: int) -> int | None:
    """Return the step at which the run ends; None if only `stop.max_time` ends it.

    The first limit that is reached counts. Tokens are rounded up to whole steps.
    """
    stop = config.stop
    limits = [
        stop.max_steps,
        None if stop.max_tokens is None else math.ceil(stop.max_tokens / tokens_per_step),
        None if stop.max_epochs is None else stop.max_epochs * steps_per_epoch,
    ]
    return min((limit for limit in limits if limit is not None), default=None)


def schedule_steps(
    config: Config, total_steps: int | None, tokens_per_step: int, faults: list[Fault]
) -> tuple[int, int | None]:
    """Return warm-up and decay in steps; a decay of None lasts until the end of the run."""
    schedule = config.schedule
    kind = schedule.kind
    is_open_ended = total_steps is None and (kind == "wsd" or schedule.decay is None)
    if is_open_ended and kind in ("cosine", "linear", "wsd"):
        faults.append(
            Fault(
                path="schedule.kind",
                found=kind,
                remedy="needs the length of the run; set stop.max_tokens, max_steps or "
                "max_epochs, or use constant or inverse_sqrt",
            )
        )
    steps: list[int | None] = []
    periods = (("schedule.warmup", schedule.warmup), ("schedule.decay", schedule.decay))
    for path, period in periods:
        is_fraction = period is not None and period.unit == "fraction" and period.amount > 0
        if period is not None and is_fraction and total_steps is None:
            if path == "schedule.warmup" and "warmup" not in schedule.model_fields_set:
                steps.append(0)
                continue
            remedy = "a fraction needs the length of the run; write steps or tokens"
            faults.append(Fault(path=path, found=str(period.to_yaml()), remedy=remedy))
        steps.append(duration_steps(period, total_steps or 0, tokens_per_step))
    warmup, decay = steps[0] or 0, steps[1]
    if schedule.decay is None:
        decay = None
    if total_steps is not None and warmup + (decay or 0) > total_steps:
        faults.append(
            Fault(
                path="schedule.warmup",
                found=f"{warmup} steps, with {decay or 0} of decay",
                remedy=f"the run has {total_steps} steps; shorten them or train longer",
            )
        )
    return warmup, decay


def duration_steps(
    duration: TrainingDuration | None, total_steps: int, tokens_per_step: int
) -> int:
    """Convert a duration to whole steps; every duration above zero lasts at least one step."""
    if duration is None or duration.amount == 0:
        return 0
    if duration.unit == "steps":
        return int(duration.amount)
    if duration.unit == "tokens":
        return math.ceil(duration.amount / tokens_per_step)
    return max(1, round(duration.amount * total_steps))
