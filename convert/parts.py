"""Deterministic units of work. In: input files and the part size. Out: `Part`s. Does not read text.

A part is a run of byte ranges of input files, cut by size alone, never by the number of workers. A range's ends are
nominal: whoever reads it moves both to the next document border, and the same border is found by the part before.
A compressed file cannot be entered in the middle, so it is one range.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from convert.inputs import InputFile

SMALLEST_PART = 4 << 20
LARGEST_PART = 64 << 20
PARTS_WANTED = 16


@dataclass(frozen=True, kw_only=True)
class Span:
    """A nominal byte range of file number `file`; `end` None means to the end of a file that is read in one go."""

    file: int
    start: int
    end: int | None


@dataclass(frozen=True, kw_only=True)
class Part:
    """Work unit number `index`."""

    index: int
    spans: tuple[Span, ...]
    size: int

    @property
    def name(self) -> str:
        """Stem of everything that this part writes."""
        return f"part-{self.index:05}"


def automatic_part_size(total: int) -> int:
    """Sixteen parts, each of 4 to 64 MiB: a function of the input alone."""
    return min(LARGEST_PART, max(SMALLEST_PART, -(-total // PARTS_WANTED)))


def plan_parts(files: Sequence[InputFile], part_size: int) -> list[Part]:
    """Cut large files at multiples of `part_size`; put small ones together until a part is full."""
    parts: list[Part] = []
    spans: list[Span] = []
    size = 0
    for number, file in enumerate(files):
        for span, length in _spans(number, file, part_size):
            if spans and size + length > part_size:
                parts.append(Part(index=len(parts), spans=tuple(spans), size=size))
                spans, size = [], 0
            spans.append(span)
            size += length
    if spans:
        parts.append(Part(index=len(parts), spans=tuple(spans), size=size))
    return parts


def _spans(number: int, file: InputFile, part_size: int) -> list[tuple[Span, int]]:
    if file.size == 0:
        return []
    if file.compression:
        return [(Span(file=number, start=0, end=None), file.size)]
    starts = range(0, file.size, part_size)
    ends = [*starts[1:], file.size]
    return [
        (Span(file=number, start=start, end=end), end - start)
        for start, end in zip(starts, ends, strict=True)
    ]
