"""Which files a job reads. In: `--input` values. Out: `InputFile`s in natural order. Does not open them.

`NAME=PATH` names a source. A directory gives every file below it with a known ending; a glob gives what it matches.
A file's label (source name and relative path) is part of the ids of its documents, so it does not depend on where the
corpus lies.
"""

from __future__ import annotations

import glob
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stream_pretrain.errors import ConfigError, DataError

Format = Literal["text", "jsonl"]
ENDINGS: dict[str, Format] = {
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
}
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}
NAMED_SOURCE = re.compile(r"([A-Za-z0-9_.-]+)=(.+)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class InputFile:
    """One input. `label` names it in ids, provenance and card; `path` is where it is now; `size` in bytes."""

    label: str
    path: str
    size: int
    format: Format
    compression: str | None


def find_inputs(inputs: Sequence[str], *, form: Format | None = None) -> list[InputFile]:
    """All files of all `--input` values, or an error that names the input which gives none."""
    if not inputs:
        raise ConfigError(
            "--input is missing: name a file, a directory, a glob or a URL (repeatable)."
        )
    files = [file for value in inputs for file in _find(value, form)]
    repeated = [
        label for label, count in Counter(file.label for file in files).items() if count > 1
    ]
    if repeated:
        raise ConfigError(
            f"--input: two files would both be called {repeated[0]!r} in document ids. "
            "Name the sources apart: --input a=PATH --input b=PATH."
        )
    if not any(file.size for file in files):
        raise DataError(
            f"--input {inputs[0]}: empty ({len(files)} files, 0 bytes). Name files that hold text."
        )
    return files


def _find(value: str, form: Format | None) -> list[InputFile]:
    named = NAMED_SOURCE.fullmatch(value)
    name, location = (named[1], named[2]) if named else (None, value)
    path = Path(location)
    if path.is_dir():
        found = [file for file in _natural(path.rglob("*")) if file.is_file()]
        known = [file for file in found if form or format_of(file.name)[0]]
        if not known:
            raise DataError(
                f"--input {value}: {len(found)} files, none with a known ending ({', '.join(ENDINGS)}). "
                "Name other files, or say what they are with --format."
            )
        root = name or path.resolve().name
        return [_input(file, f"{root}/{file.relative_to(path).as_posix()}", form) for file in known]
    if path.is_file():
        return [_input(path, f"{name}/{path.name}" if name else path.name, form)]
    matches = [
        file for file in _natural(map(Path, glob.glob(location, recursive=True))) if file.is_file()
    ]
    if not matches:
        raise DataError(
            f"--input {value}: no such file, directory or match of this glob. Check the path."
        )
    return [_input(file, f"{name}/{file.name}" if name else file.name, form) for file in matches]


def _input(path: Path, label: str, form: Format | None) -> InputFile:
    found, compression = format_of(path.name)
    if (form or found) is None:
        raise ConfigError(
            f"--input {path}: the ending says nothing about what it holds. Say it: --format text or --format jsonl."
        )
    return InputFile(
        label=label,
        path=str(path),
        size=path.stat().st_size,
        format=form or found or "text",
        compression=compression,
    )


def format_of(name: str) -> tuple[Format | None, str | None]:
    """Format and compression that a file name's endings tell; None where they tell nothing."""
    path = Path(name.lower())
    compression = COMPRESSIONS.get(path.suffix)
    stem = Path(path.stem) if compression else path
    return ENDINGS.get(stem.suffix), compression


def _natural(paths: Iterable[Path]) -> list[Path]:
    return sorted(paths, key=lambda path: natural_key(path.as_posix()))


def natural_key(text: str) -> list[tuple[int, int, str]]:
    """Sorts `part-2` before `part-10`."""
    return [
        (0, int(piece), "") if piece.isdigit() else (1, 0, piece)
        for piece in re.split(r"([0-9]+)", text)
    ]
