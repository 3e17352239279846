"""Cut the input files into tasks, the units of work of a conversion.

A task is a list of byte ranges of input files. It is cut by size alone, never by the number of
workers, so the output does not depend on how many there are. The ends of a range are nominal: the
reader moves both to the next record boundary. A file that can only be read from start to end
(compressed, tabular, standard input) belongs to one task; the worker cuts it into parts by the size
of the text, each with a receipt of its own. No text is read here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from convert.inputs.input_files import InputFile

SMALLEST_PART = 4 << 20
LARGEST_PART = 64 << 20
DEFAULT_PARTS = 16
MAX_TASKS = 999_999  # six digits in their names


@dataclass(frozen=True, kw_only=True)
class ByteRange:
    """A nominal byte range of file number `file`; `end` None means all of it, start to end."""

    file: int
    start: int
    end: int | None


@dataclass(frozen=True, kw_only=True)
class Task:
    """One unit of work. `size` is in input bytes, for progress."""

    index: int
    ranges: tuple[ByteRange, ...]
    size: int

    @property
    def has_several_parts(self) -> bool:
        """True where the worker cuts the task into parts, one after another."""
        return any(byte_range.end is None for byte_range in self.ranges)


def automatic_part_size(total: int) -> int:
    """Return a sixteenth of the input's bytes, 4 to 64 MiB: a function of the input alone."""
    return min(LARGEST_PART, max(SMALLEST_PART, -(-total // DEFAULT_PARTS)))


def plan_tasks(files: Sequence[InputFile], part_size: int) -> list[Task]:
    """Cut large files at multiples of `part_size`, and put small ones together into one task."""
    tasks: list[Task] = []
    ranges: list[ByteRange] = []
    size = 0

    def close() -> None:
        nonlocal ranges, size
        if ranges:
            tasks.append(Task(index=len(tasks), ranges=tuple(ranges), size=size))
        ranges, size = [], 0

    for number, file in enumerate(files):
        for byte_range, length in _file_ranges(number, file, part_size):
            if size + length > part_size:
                close()
            ranges.append(byte_range)
            size += length
    close()
    return tasks


def _file_ranges(number: int, file: InputFile, part_size: int) -> list[tuple[ByteRange, int]]:
    """Return the ranges of one file with their sizes; none where the file is empty."""
    if not file.is_splittable:
        return [(ByteRange(file=number, start=0, end=None), file.size)]
    starts = range(0, file.size, part_size)
    ends = [*starts[1:], file.size]
    return [
        (ByteRange(file=number, start=start, end=end), end - start)
        for start, end in zip(starts, ends, strict=False)
    ]
