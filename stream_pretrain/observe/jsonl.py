"""metrics.jsonl: one event a line. In: event dicts. Out: lines, each written at once. Does not know
what an event means.

A line exists only with its line feed: a process killed while it writes leaves a torn tail, which is
removed when the file is opened again. Values that JSON has no word for (NaN, infinity) become null,
and `nonfinite` says what they were.
"""

from __future__ import annotations

import errno
import json
import math
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from stream_pretrain.errors import StorageError
from stream_pretrain.system.paths import sync_path

Event = dict[str, Any]

TORN_SUFFIX = ".cut"
_TAIL_BYTES = 1 << 16


class MetricsFile:
    """An append-only file of events, safe to use from several threads of one process.

    The file is opened at the first append. Nothing but this object may write it meanwhile.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self._file: BinaryIO | None = None
        self._lock = threading.RLock()

    def append(self, event: Mapping[str, Any]) -> None:
        """Write one event as one line, with one write.

        Raises:
            StorageError: the disk is full, or the file cannot be written.
        """
        line = encode(event)
        with self._lock, _told(self.path):
            if self._file is None:
                self._file = self._open()
            self._file.write(line)

    def sync(self) -> None:
        """Return when every appended line is on the disk."""
        with self._lock, _told(self.path):
            if self._file is not None:
                os.fsync(self._file.fileno())

    def snapshot(self, target: Path) -> int:
        """Copy the whole lines written so far to `target`; returns their bytes. For uploads while a
        run goes on.
        """
        with self._lock:
            size = self.path.stat().st_size if self.path.exists() else 0
        target.parent.mkdir(parents=True, exist_ok=True)
        copied = 0
        with target.open("wb") as out:
            if size:
                with self.path.open("rb") as source:
                    while block := source.read(min(1 << 20, size - copied)):
                        copied += out.write(block)
            out.flush()
            os.fsync(out.fileno())
        return copied

    def cut_after(self, step: int) -> int:
        """Remove, by value, every line whose `step` is beyond `step`, and lines that are torn.
        Returns how many.

        Atomic: a process killed meanwhile leaves either the old file or the new one.
        """
        with self._lock, _told(self.path):
            self.close()
            if not self.path.exists():
                return 0
            partial = self.path.with_name(self.path.name + TORN_SUFFIX)
            removed = 0
            with self.path.open("rb") as source, partial.open("wb") as kept:
                for line in source:
                    event = decode(line)
                    if event is None or event["step"] > step:
                        removed += 1
                    else:
                        kept.write(line)
                kept.flush()
                os.fsync(kept.fileno())
            if removed == 0:
                partial.unlink()
                return 0
            partial.replace(self.path)
            sync_path(self.path.parent)
            return removed

    def close(self) -> None:
        """Sync and close. A later append opens the file again."""
        with self._lock:
            if self._file is None:
                return
            try:
                self.sync()
            finally:
                self._file.close()
                self._file = None

    def _open(self) -> BinaryIO:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        remove_torn_tail(self.path)
        return self.path.open("ab", buffering=0)


def read_events(path: Path) -> Iterator[Event]:
    """The whole events of a file, in order; torn or damaged lines are left out. No file: no
    events.
    """
    if not path.exists():
        return
    with path.open("rb") as source:
        for line in source:
            event = decode(line)
            if event is not None:
                yield event


def encode(event: Mapping[str, Any]) -> bytes:
    """One event as one line of strict JSON."""
    try:
        text = json.dumps(event, allow_nan=False, ensure_ascii=False)
    except ValueError:
        nonfinite: dict[str, str] = {}
        finite = {key: _without_nonfinite(value, key, nonfinite) for key, value in event.items()}
        text = json.dumps({**finite, "nonfinite": nonfinite}, allow_nan=False, ensure_ascii=False)
    return text.encode() + b"\n"


def decode(line: bytes) -> Event | None:
    """The event of one line, or None where the line is torn or damaged."""
    if not line.endswith(b"\n"):
        return None
    try:
        event = json.loads(line)
    except ValueError:
        return None
    if not isinstance(event, dict) or not isinstance(event.get("step"), int):
        return None
    for name, text in event.get("nonfinite", {}).items():
        if name in event:  # names of values further inside are only for people
            event[name] = float(text)
    return event


def remove_torn_tail(path: Path) -> int:
    """Cut the file back to its last line feed; returns the bytes removed."""
    if not path.exists():
        return 0
    with path.open("r+b") as file:
        size = end = file.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - _TAIL_BYTES)
            file.seek(start)
            found = file.read(end - start).rfind(b"\n")
            if found >= 0:
                end = start + found + 1
                break
            end = start
        if end < size:
            file.truncate(end)
        return size - end


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """What the system says of a file, as a message for the person who can mend it."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise StorageError(
            f"{path}: cannot be written ({error.strerror}). "
            f"{'Free some space' if full else 'Make it writable'}, then start again: the run goes "
            "on from its last checkpoint.",
            "full" if full else "denied" if error.errno == errno.EACCES else "other",
        ) from error


def _without_nonfinite(value: Any, where: str, found: dict[str, str]) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        found[where] = str(value)
        return None
    if isinstance(value, Mapping):
        return {k: _without_nonfinite(v, f"{where}.{k}", found) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nonfinite(v, f"{where}.{i}", found) for i, v in enumerate(value)]
    return value
