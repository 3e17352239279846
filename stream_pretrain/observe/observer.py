"""Report steps, evaluations and saves to `metrics.jsonl`, the console and further loggers.

The numbers of a `StepRecord` may still be on the device. Records are kept until `log_due(step)`,
`flush`, an evaluation or the end, and are then read together and written in order: every step has
its line, and the host waits for the device once per logging interval. The written events are
returned to the caller, which decides by them about spikes and skipped steps.

Ranks other than 0 have neither metrics, loggers nor console; they read and return the same values.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from stream_pretrain.observe import events
from stream_pretrain.observe.console import StatusLine, training_line
from stream_pretrain.observe.events import StepRecord
from stream_pretrain.observe.jsonl import Event, MetricsFile, read_events
from stream_pretrain.observe.throughput import Activity, Meter, Rates

EMPTY = -1  # no step at all: steps count from 0


class MetricsLogger(Protocol):
    """A further receiver of the numbers, such as TensorBoard. Steps come in ascending order."""

    def resume(self, step: int) -> int:
        """Remove all steps after `step` (EMPTY: all steps), if that is possible.

        Called once, before any other method. Return the last remaining step, or EMPTY.
        """

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record the numbers of one step."""

    def flush(self) -> None:
        """Write all recorded steps so that they survive a kill of the process."""

    def close(self) -> None:
        """Flush and release all resources."""


@dataclass(frozen=True, kw_only=True)
class RunLimits:
    """The last step of a run and its tokens, for the status line; None if not known."""

    steps: int | None = None
    tokens: int | None = None


class Observer:
    """Compose the metrics file, the console, the meter and the loggers of one process."""

    def __init__(
        self,
        *,
        meter: Meter,
        log_due: Callable[[int], bool],
        metrics: MetricsFile | None = None,
        console: StatusLine | None = None,
        loggers: Sequence[MetricsLogger] = (),
        limits: RunLimits | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.meter = meter
        self._log_due = log_due
        self._metrics = metrics
        self._console = console
        self._loggers = tuple(loggers)
        self._limits = limits or RunLimits()
        self._clock = clock
        self._pending: list[tuple[float, StepRecord]] = []
        self._unreturned: list[Event] = []
        self._row: tuple[int, dict[str, float]] | None = None
        self._last_tokens: int | None = None
        self._lock = threading.RLock()

    def start(
        self,
        *,
        step: int,
        tokens: int,
        resumed: bool,
        loggers: Sequence[MetricsLogger] = (),
        **facts: Any,
    ) -> None:
        """Start at `step`, after `tokens` targets.

        Steps that a killed process recorded after `step` are removed. `loggers` are added here
        because the id of their run may be known only now.
        """
        last_step = step if resumed else EMPTY
        with self._lock:
            self._loggers += tuple(loggers)
            if self._metrics is not None:
                self._metrics.cut_after(last_step)
            for logger in self._loggers:
                self._resume_logger(logger, last_step)
            first_event = events.resume_event if resumed else events.start_event
            self._write(first_event(step=step, time=self._clock(), **facts))
            self._last_tokens = tokens
            self.meter.reset()

    def _resume_logger(self, logger: MetricsLogger, step: int) -> None:
        """Cut a logger back to `step`, and log the steps that it lacks.

        A logger lacks steps if it was added after the start of the run, or if its disk is new.
        """
        last_logged = logger.resume(step)
        if last_logged >= step or self._metrics is None:
            return
        for row_step, values in events.rows(read_events(self._metrics.path)):
            if row_step > last_logged:
                logger.log(row_step, values)

    @contextmanager
    def during(self, activity: Activity) -> Iterator[None]:
        """Count the time of the `with` block as a wait for data, a save or an evaluation.

        Before a save or an evaluation the steps are flushed, so that the time of queued work is not
        counted as theirs.
        """
        if activity != "data":
            self.flush()
        with self.meter.during(activity):
            yield

    def step(self, record: StepRecord) -> list[Event]:
        """Record a step that was queued.

        Return the step events that were read since the last call, which are mostly none. If a save
        must not follow a bad loss, `log_due` must be true for the steps that save.
        """
        with self._lock:
            self._pending.append((self._clock(), record))
            self.meter.advance(record.tokens - (self._last_tokens or 0))
            self._last_tokens = record.tokens
            if self._log_due(record.step):
                self.flush()
            return self._take_unreturned()

    def read(self) -> list[Event]:
        """Flush, and return the step events that were read since the last call."""
        with self._lock:
            self.flush()
            return self._take_unreturned()

    def flush(self) -> None:
        """Read and write the steps recorded so far.

        This (or `read`) must be called in the thread of the loop before a save begins.
        """
        with self._lock:
            if not self._pending:
                return
            pending, self._pending = self._pending, []
            read = [events.step_event(record, time=at, rates={}) for at, record in pending]
            rates = self.meter.end_interval()  # after the reads: the device has done these steps
            written = [_with_rates(event, rates) for event in read]
            for event in written:
                self._write(event)
            self._unreturned += written
            for logger in self._loggers:
                logger.flush()
            self._show(written[-1], rates)

    def evaluation(
        self, *, step: int, sets: Mapping[str, Mapping[str, Any]], seconds: float | None = None
    ) -> None:
        """Record the values of each validation set.

        `seconds` are by default the time of the last `during("evaluation")`.
        """
        with self._lock:
            self.flush()
            if seconds is None:
                seconds = self.meter.last.get("evaluation")
            for event in events.evaluation_events(
                step=step, time=self._clock(), sets=sets, seconds=seconds
            ):
                self._write(event)
                self._print_line(_evaluation_line(event))

    def save(self, *, step: int, seconds: float | None = None, **facts: Any) -> None:
        """Record a save that blocked training for `seconds`.

        They are by default the time of the last `during("save")`.
        """
        with self._lock:
            self.flush()
            if seconds is None:
                seconds = self.meter.last.get("save", 0.0)
            self._write(events.save_event(step=step, time=self._clock(), seconds=seconds, **facts))

    def print_line(self, message: str) -> None:
        """Print a message on a line of its own, if there is a console."""
        with self._lock:
            self._print_line(message)

    def sync(self, publish: Callable[[Path], None] | None = None) -> None:
        """Flush everything written so far to the disk, then pass a copy to `publish` (an upload).

        The thread that writes a checkpoint may call this before it writes the receipt, because no
        device values are read.
        """
        with self._lock:
            for logger in self._loggers:
                logger.flush()
            if self._metrics is None:
                return
            self._metrics.sync()
        if publish is not None:
            copy = self._metrics.path.with_name(self._metrics.path.name + ".upload")
            self._metrics.snapshot(copy)
            try:
                publish(copy)
            finally:
                copy.unlink(missing_ok=True)

    def stop(self, *, step: int, reason: str, **facts: Any) -> list[Event]:
        """Record the end of the process for `reason`, and write and sync everything.

        Return the step events that were read since the last call.
        """
        with self._lock:
            self.flush()
            self._write(events.stop_event(step=step, time=self._clock(), reason=reason, **facts))
            self.sync()
            return self._take_unreturned()

    def close(self) -> None:
        """Close the files, the loggers and the console.

        Steps that were never flushed are lost, as when the process is killed.
        """
        with self._lock:
            self._send_row()
            for logger in self._loggers:
                logger.close()
            if self._metrics is not None:
                self._metrics.close()
            if self._console is not None:
                self._console.close()

    def _take_unreturned(self) -> list[Event]:
        unreturned, self._unreturned = self._unreturned, []
        return unreturned

    def _write(self, event: Event) -> None:
        if self._metrics is not None:
            self._metrics.append(event)
        values = events.scalars(event) if self._loggers else {}
        if not values:
            return
        step = event["step"]
        if self._row is not None and self._row[0] == step:
            self._row[1].update(values)
            return
        self._send_row()
        self._row = (step, values)

    def _send_row(self) -> None:
        """Send the pending row to the loggers.

        The row of a step is kept until the next step, because it may have to include an evaluation
        and loggers receive each step once. A kill meanwhile loses nothing: the next start reads the
        row from the metrics file.
        """
        if self._row is not None:
            step, values = self._row
            self._row = None
            for logger in self._loggers:
                logger.log(step, values)

    def _show(self, event: Event, rates: Rates) -> None:
        if self._console is None:
            return
        status = {
            "save_share": rates.save_share,
            "seconds_left": self._seconds_left(event["tokens"]),
            "skipped": event.get("skipped"),
        }
        self._console.show(
            lambda: training_line(event, total_steps=self._limits.steps, status=status),
            done=event["step"],
            total=self._limits.steps,
            force=event["step"] == self._limits.steps,
        )

    def _seconds_left(self, tokens: int) -> float | None:
        total = self._limits.tokens
        return self.meter.seconds_left(None if total is None else total - tokens)

    def _print_line(self, message: str) -> None:
        if self._console is not None:
            self._console.print_line(message)


def _with_rates(event: Event, rates: Rates) -> Event:
    digest = event.pop("digest")
    return {**event, **rates.per_step(), "digest": digest}


def _evaluation_line(event: Event) -> str:
    numbers = [f"loss {event['loss']:.4f}", f"perplexity {event['perplexity']:.4g}"]
    if event.get("bits_per_byte") is not None:
        numbers.append(f"bits/byte {event['bits_per_byte']:.4f}")
    return f"evaluation at step {event['step']:,}: {event['set']}  " + "  ".join(numbers)
