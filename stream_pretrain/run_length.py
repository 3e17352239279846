"""How long a run is, in steps. In: the configuration, tokens a step, steps an epoch. Out: total,
warm-up and decay. Pure; what does not fit becomes a fault.
"""

from __future__ import annotations

import math

from stream_pretrain.config.sections import Config
from stream_pretrain.config.types import TrainingDuration
from stream_pretrain.errors import Fault


def total_steps_of(config: Config, tokens_per_step: int, steps_per_epoch: int) -> int | None:
    """The first limit that a run of known length meets; tokens are rounded up to whole steps."""
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
    """Warm-up and decay in steps; no decay length means: to the end of the run."""
    schedule = config.schedule
    kind = schedule.kind
    open_end = total_steps is None and (kind == "wsd" or schedule.decay is None)
    if open_end and kind in ("cosine", "linear", "wsd"):
        faults.append(
            Fault(
                path="schedule.kind",
                found=kind,
                remedy="needs the length of the run; set stop.max_tokens, max_steps or "
                "max_epochs, or "
                "use constant or inverse_sqrt",
            )
        )
    steps: list[int | None] = []
    for path, span in (("schedule.warmup", schedule.warmup), ("schedule.decay", schedule.decay)):
        if span is not None and span.unit == "fraction" and span.amount and total_steps is None:
            if path == "schedule.warmup" and "warmup" not in schedule.model_fields_set:
                steps.append(0)
                continue
            remedy = "a fraction needs the length of the run; write steps or tokens"
            faults.append(Fault(path=path, found=str(span.plain()), remedy=remedy))
        steps.append(duration_steps(span, total_steps or 0, tokens_per_step))
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


def duration_steps(span: TrainingDuration | None, total_steps: int, tokens_per_step: int) -> int:
    """A stretch of training in whole steps; anything above zero lasts at least one."""
    if span is None or span.amount == 0:
        return 0
    if span.unit == "steps":
        return int(span.amount)
    if span.unit == "tokens":
        return math.ceil(span.amount / tokens_per_step)
    return max(1, round(span.amount * total_steps))
