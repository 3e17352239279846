"""Show the progress of a long job on stderr: one live line on a terminal, plain lines elsewhere.

stdout stays free for `--json`. rich is imported only if there is a terminal. The output is limited
to a few lines per second here, so that `Progress.update` may be called for every document.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TextIO

from stream_pretrain.observe.jsonl import Event
from stream_pretrain.units import format_bytes, format_count, format_duration

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

Mode = Literal["auto", "terminal", "plain", "off"]

_PLAIN_EVERY_SECONDS = 10.0
_TERMINAL_EVERY_SECONDS = 0.1


class Progress:
    """A progress bar.

    `with Progress("encode", total=n, unit="documents") as bar: bar.advance(1, tokens=512)`

    `done` and `total`, both in `unit`, determine the bar and the time left. Further counts
    (`documents`, `tokens`) are shown as they are, and the count that `rate_of` names also per
    second. `total` may be None or set later.
    """

    def __init__(
        self,
        title: str,
        *,
        total: float | None = None,
        unit: str = "documents",
        rate_of: str = "tokens",
        mode: Mode = "auto",
        stream: TextIO | None = None,
        every_seconds: float = _PLAIN_EVERY_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.title = title
        self.total = total
        self.unit = unit
        self.rate_of = rate_of
        self.done: float = 0
        self.counts: dict[str, float] = {}
        self._line = StatusLine(mode=mode, stream=stream, every_seconds=every_seconds, clock=clock)
        self._clock = clock
        self._began = clock()
        self._done_at_start: float = 0
        self._counts_at_start: dict[str, float] = {}
        self._closed = False

    def start_from(self, done: float, **counts: float) -> None:
        """Start after work done earlier (a resume): it counts for the bar, not for the rates."""
        self.done, self.counts = done, dict(counts)
        self._done_at_start, self._counts_at_start = done, dict(counts)
        self._began = self._clock()

    def advance(self, done: float = 0, **counts: float) -> None:
        """Add to the work done and to the counts."""
        for name, value in counts.items():
            self.counts[name] = self.counts.get(name, 0) + value
        self.update(self.done + done)

    def update(self, done: float, **counts: float) -> None:
        """Set the work done and the given counts."""
        self.done = done
        self.counts.update(counts)
        self._line.show(self.text, done=self.done, total=self.total)

    def print_line(self, message: str) -> None:
        """Print a line above the bar."""
        self._line.print_line(message)

    def text(self) -> str:
        """Return the current text of the line."""
        parts = [self._amount()]
        parts += [
            f"{format_count(v)} {name}" for name, v in self.counts.items() if name != self.unit
        ]
        seconds = max(self._clock() - self._began, 1e-9)
        work = self.counts if self.rate_of != self.unit else {self.rate_of: self.done}
        if self.rate_of in work:
            rate = (work[self.rate_of] - self._counts_at_start.get(self.rate_of, 0)) / seconds
            parts.append(f"{format_count(rate)} {self.rate_of}/s")
        parts.append(self._time(seconds))
        return f"{self.title}  " + "  ".join(parts)

    def close(self) -> None:
        """Show the final state."""
        if not self._closed:
            self._closed = True
            self._line.show(self.text, done=self.done, total=self.total, force=True)
            self._line.close()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _amount(self) -> str:
        formatted = format_bytes if self.unit == "bytes" else format_count
        suffix = "" if self.unit == "bytes" else f" {self.unit}"
        if self.total is None:
            return f"{formatted(self.done)}{suffix}"
        share = 100 * self.done / self.total if self.total else 100.0
        return f"{formatted(self.done)}/{formatted(self.total)}{suffix} ({share:.0f} %)"

    def _time(self, seconds: float) -> str:
        worked = self.done - self._done_at_start
        if self._closed:
            return f"in {format_duration(seconds)}"
        if self.total is None or worked <= 0:
            return f"{format_duration(seconds)} so far"
        return f"{format_duration(seconds * max(0.0, self.total - self.done) / worked)} left"


class StatusLine:
    """One line that is rewritten on a terminal, or printed at intervals elsewhere.

    With mode `off` nothing is printed.
    """

    def __init__(
        self,
        *,
        mode: Mode = "auto",
        stream: TextIO | None = None,
        every_seconds: float = _PLAIN_EVERY_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self.mode: Mode = resolve_mode(mode, self._stream)
        self._every = _TERMINAL_EVERY_SECONDS if self.mode == "terminal" else every_seconds
        self._clock = clock
        self._shown_at: float | None = None
        self._last_text = ""
        self._live: tuple[RichProgress, TaskID] | None = None

    def show(
        self, text: Callable[[], str], *, done: float, total: float | None, force: bool = False
    ) -> None:
        """Show `text()` if the interval has passed.

        With `force` it is shown in any case, unless it is the line that was printed last.
        """
        now = self._clock()
        if self.mode == "off" or not (force or self._is_due(now)):
            return
        self._shown_at = now
        line = text()
        if self.mode == "terminal":
            self._show_live(line, done, total)
        elif line != self._last_text:
            print(line, file=self._stream, flush=True)
        self._last_text = line

    def print_line(self, message: str) -> None:
        """Print a line that stays on the screen."""
        if self.mode == "off":
            return
        if self._live is not None:
            self._live[0].console.print(message, markup=False, highlight=False, soft_wrap=True)
        else:
            print(message, file=self._stream, flush=True)

    def close(self) -> None:
        """Keep the last state on the screen and release the terminal."""
        if self._live is not None:
            self._live[0].stop()
            self._live = None

    def _is_due(self, now: float) -> bool:
        return self._shown_at is None or now - self._shown_at >= self._every

    def _show_live(self, line: str, done: float, total: float | None) -> None:
        if self._live is None:
            self._live = _open_live(self._stream, line)
        bar, task = self._live
        bar.update(task, completed=done, total=total, description=line)


def resolve_mode(mode: Mode, stream: TextIO) -> Mode:
    """Return `terminal` or `plain` for `auto`, and any other mode unchanged."""
    if mode != "auto":
        return mode
    if os.environ.get("TERM") == "dumb" or not stream.isatty():
        return "plain"
    return "terminal"


def training_line(event: Event, *, total_steps: int | None, status: Mapping[str, Any]) -> str:
    """Return the status line of one step event.

    The most important numbers come first, because a narrow terminal cuts the end. `status` may have
    `save_share`, `seconds_left` and `skipped`.
    """
    total = "" if total_steps is None else f"/{total_steps:,}"
    parts = [
        f"step {event['step']:,}{total}",
        f"loss {_number(event['loss'], '.4f')}",
        f"lr {event['lr']:.2e}",
        f"norm {_number(event['grad_norm'], '.3g')}",
        f"{format_count(event['tokens_per_second'])} tok/s",
    ]
    if status.get("seconds_left") is not None:
        parts.append(f"{format_duration(status['seconds_left'])} left")
    if event.get("mfu") is not None:
        parts.append(f"mfu {_percent(event['mfu'])}")
    parts.append(f"data {_percent(event['data_wait'])}")
    if status.get("save_share") is not None:
        parts.append(f"save {_percent(status['save_share'])}")
    if status.get("skipped"):
        parts.append(f"skipped {status['skipped']:,}")
    return "  ".join(parts)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _number(value: float | None, format_spec: str) -> str:
    return "nan" if value is None else format(value, format_spec)


def _open_live(stream: TextIO, line: str) -> tuple[RichProgress, TaskID]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    console = Console(file=stream, force_terminal=True)
    bar = Progress(
        BarColumn(bar_width=12),
        TextColumn("{task.description}", markup=False),
        console=console,
        refresh_per_second=8,
        redirect_stdout=False,  # else rich would redirect stdout to stderr
    )
    task = bar.add_task(line, total=None)
    bar.start()
    console.show_cursor(True)  # a killed process could not show it again
    return bar, task
