"""Deterministic units of work. In: input files and the part size. Out: `Task`s. Does not read text.

A task is a run of byte ranges of input files, cut by size alone, never by the number of workers. A
range's ends are nominal: whoever reads it moves both to the next document border. A file that can
only be read from front to back (compressed, tabular, standard input) belongs to one task; its
worker cuts that into parts by the size of the text, each with a receipt of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from convert.inputs.input_files import InputFile

SMALLEST_PART = 4 << 20
LARGEST_PART = 64 << 20
PARTS_WANTED = 16
MOST_TASKS = 999_999  # six digits in their names


@dataclass(frozen=True, kw_only=True)
class ByteRange:
    """A nominal byte range of file number `file`; `end` None: all of it, from front to back."""

    file: int
    start: int
    end: int | None


@dataclass(frozen=True, kw_only=True)
class Task:
    """What one worker does in one go. `size` in input bytes, for progress and for order."""

    index: int
    spans: tuple[ByteRange, ...]
    size: int

    @property
    def is_chain(self) -> bool:
        """True where the task gives several parts, one after another."""
        return any(span.end is None for span in self.spans)


def automatic_part_size(total: int) -> int:
    """Sixteen parts, each of 4 to 64 MiB: a function of the input alone."""
    return min(LARGEST_PART, max(SMALLEST_PART, -(-total // PARTS_WANTED)))


def plan_tasks(files: Sequence[InputFile], part_size: int) -> list[Task]:
    """Cut large files at multiples of `part_size`; put small ones together until a part is full."""
    tasks: list[Task] = []
    spans: list[ByteRange] = []
    size = 0

    def close() -> None:
        nonlocal spans, size
        if spans:
            tasks.append(Task(index=len(tasks), spans=tuple(spans), size=size))
        spans, size = [], 0

    for number, file in enumerate(files):
        for span, length in _spans(number, file, part_size):
            if size + length > part_size:
                close()
            spans.append(span)
            size += length
    close()
    return tasks


def _spans(number: int, file: InputFile, part_size: int) -> list[tuple[ByteRange, int]]:
    """The ranges of one file with their sizes; none where it is empty."""
    if not file.is_cut_anywhere:
        return [(ByteRange(file=number, start=0, end=None), file.size)]
    starts = range(0, file.size, part_size)
    ends = [*starts[1:], file.size]
    return [
        (ByteRange(file=number, start=start, end=end), end - start)
        for start, end in zip(starts, ends, strict=False)
    ]
