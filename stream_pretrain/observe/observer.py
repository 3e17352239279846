"""A run's voice: steps, evaluations, saves -> metrics.jsonl, console, logger sinks. Does not make
the host wait.

In: `StepRecord`s whose numbers may still be on the device. They are kept until `log_due(step)`,
`flush`, an evaluation or the end, then read together and written in order, so that every step has
its line and the device is waited for once per logging interval. Out: the events written, for those
who decide by them (spikes, skips).

On ranks other than the leader give neither metrics, sinks nor console: the same values are read and
returned.
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

EMPTY = -1  # no step at all: they count from 0


class Sink(Protocol):
    """Another place for the numbers, such as TensorBoard. Steps come in ascending order."""

    def resume(self, step: int) -> int:
        """A run goes on from `step` (EMPTY: from nothing): forget what lies beyond, where that is
        possible. Called once, first. Returns the last step that is there (EMPTY: none).
        """

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Keep the numbers of one step."""

    def flush(self) -> None:
        """Bring what was logged to where it survives a kill."""

    def close(self) -> None:
        """Flush and let go."""


@dataclass(frozen=True, kw_only=True)
class Goal:
    """Where the run ends, for the time left: the first of these that is reached."""

    steps: int | None = None
    tokens: int | None = None
    deadline_left: Callable[[], float] | None = None


class Observer:
    """Composes the metrics file, the console, the meter and the sinks of one process."""

    def __init__(
        self,
        *,
        meter: Meter,
        log_due: Callable[[int], bool],
        metrics: MetricsFile | None = None,
        console: StatusLine | None = None,
        sinks: Sequence[Sink] = (),
        goal: Goal | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.meter = meter
        self._log_due = log_due
        self._metrics = metrics
        self._console = console
        self._sinks = tuple(sinks)
        self._goal = goal or Goal()
        self._clock = clock
        self._waiting: list[tuple[float, StepRecord]] = []
        self._unseen: list[Event] = []
        self._row: tuple[int, dict[str, float]] | None = None
        self._last_tokens: int | None = None
        self._lock = threading.RLock()

    def start(
        self, *, step: int, tokens: int, resumed: bool, sinks: Sequence[Sink] = (), **facts: Any
    ) -> None:
        """The process begins at `step` with `tokens` behind it. What a killed process wrote beyond
        `step` is removed. `sinks` are added: their run's identity may be known only now.
        """
        keep = step if resumed else EMPTY
        with self._lock:
            self._sinks += tuple(sinks)
            if self._metrics is not None:
                self._metrics.cut_after(keep)
            for sink in self._sinks:
                self._bring_up_to(sink, keep)
            make = events.resume_event if resumed else events.start_event
            self._write(make(step=step, time=self._clock(), **facts))
            self._last_tokens = tokens
            self.meter.begin()

    def _bring_up_to(self, sink: Sink, step: int) -> None:
        """Cut a sink back to `step` and give it what it lacks: it may be new, or on a new disk."""
        held = sink.resume(step)
        if held >= step or self._metrics is None:
            return
        for row_step, values in events.rows(read_events(self._metrics.path)):
            if row_step > held:
                sink.log(row_step, values)

    @contextmanager
    def during(self, activity: Activity) -> Iterator[None]:
        """`with observer.during("data"):` counts the enclosed time as a wait for data, a save or an
        evaluation. The latter two flush first, so that work still queued is not counted as theirs.
        """
        if activity != "data":
            self.flush()
        with self.meter.during(activity):
            yield

    def step(self, record: StepRecord) -> list[Event]:
        """One step was queued. Returns the step events read since the last call: mostly none.

        Where a save must not happen after a bad loss, `log_due` must hold for the steps that save.
        """
        with self._lock:
            self._waiting.append((self._clock(), record))
            self.meter.advance(record.tokens - (self._last_tokens or 0))
            self._last_tokens = record.tokens
            if self._log_due(record.step):
                self.flush()
            return self._take_unseen()

    def read(self) -> list[Event]:
        """Flush; returns as `step` does. For whoever must know of every step so far, right now."""
        with self._lock:
            self.flush()
            return self._take_unseen()

    def flush(self) -> None:
        """Read and write the steps kept so far. Call it (or `read`) in the loop's thread before a
        save begins.
        """
        with self._lock:
            if not self._waiting:
                return
            waiting, self._waiting = self._waiting, []
            read = [events.step_event(record, time=at, rates={}) for at, record in waiting]
            rates = self.meter.interval()  # after the reads: the device has done these steps
            written = [_with_rates(event, rates) for event in read]
            for event in written:
                self._write(event)
            self._unseen += written
            for sink in self._sinks:
                sink.flush()
            self._show(written[-1], rates)

    def evaluation(
        self, *, step: int, sets: Mapping[str, Mapping[str, Any]], seconds: float | None = None
    ) -> None:
        """Losses per validation set, one event each. `seconds`: by default what `during`
        counted.
        """
        with self._lock:
            self.flush()
            if seconds is None:
                seconds = self.meter.last.get("evaluation")
            for event in events.evaluation_events(
                step=step, time=self._clock(), sets=sets, seconds=seconds
            ):
                self._write(event)
                self._say(_evaluation_line(event))

    def save(self, *, step: int, seconds: float | None = None, **facts: Any) -> None:
        """A save was made, for which training stood still `seconds` (by default as `during`
        counted).
        """
        with self._lock:
            self.flush()
            if seconds is None:
                seconds = self.meter.last.get("save", 0.0)
            self._write(events.save_event(step=step, time=self._clock(), seconds=seconds, **facts))

    def say(self, message: str) -> None:
        """Tell the person something, on a line of its own."""
        with self._lock:
            self._say(message)

    def sync(self, publish: Callable[[Path], None] | None = None) -> None:
        """What was written is on the disk when this returns; then a copy of it is handed to
        `publish` (an upload).

        Safe from the thread that writes a checkpoint, before its receipt: it reads no device
        values.
        """
        with self._lock:
            for sink in self._sinks:
                sink.flush()
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
        """The process ends, for `reason`; all is written and synced. Returns as `step` does."""
        with self._lock:
            self.flush()
            self._write(events.stop_event(step=step, time=self._clock(), reason=reason, **facts))
            self.sync()
            return self._take_unseen()

    def close(self) -> None:
        """Let go of files, sinks and the terminal. Steps that were never flushed are lost, as at a
        kill.
        """
        with self._lock:
            self._send_row()
            for sink in self._sinks:
                sink.close()
            if self._metrics is not None:
                self._metrics.close()
            if self._console is not None:
                self._console.close()

    def _take_unseen(self) -> list[Event]:
        unseen, self._unseen = self._unseen, []
        return unseen

    def _write(self, event: Event) -> None:
        if self._metrics is not None:
            self._metrics.append(event)
        values = events.scalars(event) if self._sinks else {}
        if not values:
            return
        step = event["step"]
        if self._row is not None and self._row[0] == step:
            self._row[1].update(values)
            return
        self._send_row()
        self._row = (step, values)

    def _send_row(self) -> None:
        """A step's row waits for its evaluation until the next step, so that sinks get each step
        once. A kill meanwhile loses nothing: the next start finds it in the metrics file.
        """
        if self._row is not None:
            step, values = self._row
            self._row = None
            for sink in self._sinks:
                sink.log(step, values)

    def _show(self, event: Event, rates: Rates) -> None:
        if self._console is None:
            return
        status = {
            "save_share": rates.save_share,
            "seconds_left": self._seconds_left(event["tokens"]),
            "skipped": event.get("skipped"),
        }
        self._console.show(
            lambda: training_line(event, total_steps=self._goal.steps, status=status),
            done=event["step"],
            total=self._goal.steps,
            force=event["step"] == self._goal.steps,
        )

    def _seconds_left(self, tokens: int) -> float | None:
        goal = self._goal
        by_tokens = self.meter.seconds_left(None if goal.tokens is None else goal.tokens - tokens)
        by_time = None if goal.deadline_left is None else max(0.0, goal.deadline_left())
        known = [seconds for seconds in (by_tokens, by_time) if seconds is not None]
        return min(known, default=None)

    def _say(self, message: str) -> None:
        if self._console is not None:
            self._console.say(message)


def _with_rates(event: Event, rates: Rates) -> Event:
    digest = event.pop("digest")
    return {**event, **rates.per_step(), "digest": digest}


def _evaluation_line(event: Event) -> str:
    numbers = [f"loss {event['loss']:.4f}", f"perplexity {event['perplexity']:.4g}"]
    if event.get("bits_per_byte") is not None:
        numbers.append(f"bits/byte {event['bits_per_byte']:.4f}")
    return f"evaluation at step {event['step']:,}: {event['set']}  " + "  ".join(numbers)
