"""Build the events that `metrics.jsonl` records.

Each function takes the numbers of one start, step, evaluation, save or stop and returns a dict.
Every event has `event`, `step` and `time` (seconds since 1970, UTC). Losses are in nats per token.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from stream_pretrain.observe.jsonl import Event


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """One optimizer step, as the loop knows it right after it was queued on the device.

    `loss`, `grad_norm` and the values of `extra` may be device values (anything with `.tolist()` or
    `.item()`, or a callable without arguments): they are read only when the step is written, and
    the loop must not change them in place before. `tokens` counts targets since the run began;
    `loss` is that of this step.
    """

    step: int
    tokens: int
    epoch: int
    sample_in_epoch: int
    loss: Any
    lr: float
    grad_norm: Any
    digest: str
    data_step: int | None = None
    stream_tokens: Mapping[str, Any] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


def start_event(*, step: int, time: float, **facts: Any) -> Event:
    """Return the event of a run's first start.

    `facts` describe the run: versions, hardware, topology, fingerprints, limits.
    """
    return {"event": "start", "step": step, "time": time, **facts}


def resume_event(*, step: int, time: float, **facts: Any) -> Event:
    """Return the event of a further start, from the checkpoint of `step`."""
    return {"event": "resume", "step": step, "time": time, **facts}


def step_event(record: StepRecord, *, time: float, rates: Mapping[str, Any]) -> Event:
    """Return the event of one step; its device values are read here.

    `rates` has `tokens_per_second`, `data_wait` and the other rates of its interval.
    """
    event: Event = {
        "event": "step",
        "step": record.step,
        "time": time,
        "tokens": record.tokens,
        "epoch": record.epoch,
        "sample_in_epoch": record.sample_in_epoch,
        "loss": read_value(record.loss),
        "lr": record.lr,
        "grad_norm": read_value(record.grad_norm),
        **rates,
        "digest": record.digest,
    }
    if record.data_step is not None:
        event["data_step"] = record.data_step
    if record.stream_tokens is not None:
        event["stream_tokens"] = read_value(record.stream_tokens)
    for name, value in record.extra.items():
        event[name] = read_value(value)
    return event


def evaluation_events(
    *, step: int, time: float, sets: Mapping[str, Mapping[str, Any]], seconds: float | None = None
) -> list[Event]:
    """Return one event per validation set, in order.

    An event has the name of its `set` and all given values (`loss`, `perplexity`, `bits_per_byte`).
    A missing `perplexity` is computed from `loss`. `seconds` of the whole evaluation are divided
    evenly among the sets.
    """
    spent = {} if seconds is None else {"seconds": seconds / max(1, len(sets))}
    return [
        {
            "event": "evaluation",
            "step": step,
            "time": time,
            "set": name,
            **_with_perplexity(values),
            **spent,
        }
        for name, values in sets.items()
    ]


def save_event(*, step: int, time: float, seconds: float, **facts: Any) -> Event:
    """Return the event of a save that blocked training for `seconds`."""
    return {"event": "save", "step": step, "time": time, "seconds": seconds, **facts}


def stop_event(*, step: int, time: float, reason: str, **facts: Any) -> Event:
    """Return the event of the end of a process."""
    return {"event": "stop", "step": step, "time": time, "reason": reason, **facts}


def read_value(value: Any) -> Any:
    """Return the plain value of a number, device value or callable, or a collection of them."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {key: read_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [read_value(item) for item in value]
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "item"):
        return value.item()
    if callable(value):
        return read_value(value())
    raise TypeError(f"must be a number, a device value or a callable, got {type(value).__name__}")


def scalars(event: Event) -> dict[str, float]:
    """Return the numbers of an event under the names for loggers.

    Such names are `train/loss` and `validation/web/loss`.
    """
    if event["event"] == "step":
        return dict(_flat("train", {k: v for k, v in event.items() if k not in _NOT_LOGGED}))
    if event["event"] == "evaluation":
        values = {k: v for k, v in event.items() if k not in _NOT_LOGGED}
        return dict(_flat(f"validation/{event['set']}", values))
    return {}


def rows(history: Iterable[Event]) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield the numbers of a sequence of events as loggers receive them: one row per step."""
    row: tuple[int, dict[str, float]] | None = None
    for event in history:
        values = scalars(event)
        if not values:
            continue
        if row is not None and row[0] != event["step"]:
            yield row
            row = None
        row = (event["step"], {**row[1], **values} if row else values)
    if row is not None:
        yield row


_NOT_LOGGED = ("event", "step", "time", "digest", "set")


def _flat(prefix: str, value: Any) -> list[tuple[str, float]]:
    if isinstance(value, Mapping):
        return [pair for key, item in value.items() for pair in _flat(f"{prefix}/{key}", item)]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return [(prefix, float(value))]
    return []


def _with_perplexity(values: Mapping[str, Any]) -> dict[str, Any]:
    result = {key: read_value(value) for key, value in values.items()}
    if "loss" in result and "perplexity" not in result:
        result["perplexity"] = math.inf if result["loss"] > 700 else math.exp(result["loss"])
    return result
