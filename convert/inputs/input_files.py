"""Find the input files of a job.

The `--input` values come in, and `InputFile`s come out, in natural order. `NAME=PATH` names a
source. A directory or prefix stands for every file below it with a known ending, and a glob for
what it matches. A file's label (source name and relative path) is part of the ids of its documents,
so these do not depend on the directory of the corpus. The contents of the files are not read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from convert.config import InputFormat
from convert.inputs.list_files import ListedFile, explain_no_files, list_files, resolve_location
from stream_pretrain.config.sections import StorageConfig
from stream_pretrain.errors import ConfigError, DataError
from stream_pretrain.schema import CARD_NAME
from stream_pretrain.storage.location import is_remote

FORMATS_BY_SUFFIX: dict[str, InputFormat] = {
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".mds": "mds",
}
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}
METADATA_FILES = {
    "index.json",
    "dataset.json",
    "dataset_info.json",
    "dataset_dict.json",
    "state.json",
}
NAMED_SOURCE = re.compile(r"([A-Za-z0-9_.-]+)=(.+)", re.DOTALL)
STDIN = "-"


@dataclass(frozen=True, kw_only=True)
class InputFile:
    """One input. `label` names it in ids, provenance and card; `path` is a path, a URL or `-`.

    `size` is in bytes. `stamp` changes with the file (modification time, or a bucket's etag).
    """

    label: str
    path: str
    size: int
    stamp: str
    format: InputFormat
    compression: str | None

    @property
    def is_remote(self) -> bool:
        """True for an object of a bucket."""
        return is_remote(self.path)

    @property
    def is_stdin(self) -> bool:
        """True for standard input."""
        return self.path == STDIN

    @property
    def is_splittable(self) -> bool:
        """True where reading may begin at any byte: uncompressed JSON lines and text."""
        return self.format in ("text", "jsonl") and not self.compression and not self.is_stdin


def find_inputs(
    inputs: Sequence[str],
    *,
    file_format: InputFormat | None = None,
    storage: StorageConfig | None = None,
) -> list[InputFile]:
    """Return all files of all `--input` values.

    Raises `ConfigError` or `DataError`, which names the input that gives no file.
    """
    if not inputs:
        raise ConfigError("--input is missing: name a file, a directory, a glob or a URL.")
    files = [file for value in inputs for file in _find_one(value, file_format, storage)]
    labels = Counter(file.label for file in files)
    repeated = [label for label, count in labels.items() if count > 1]
    if repeated:
        raise ConfigError(
            f"--input: two files would both be called {repeated[0]!r} in document ids. "
            "Name the sources apart: --input a=PATH --input b=PATH."
        )
    if not any(file.size or file.is_stdin for file in files):
        raise DataError(
            f"--input {inputs[0]}: empty ({len(files)} file(s), 0 bytes). Name files with text."
        )
    return files


def _find_one(
    value: str, file_format: InputFormat | None, storage: StorageConfig | None
) -> list[InputFile]:
    named = NAMED_SOURCE.fullmatch(value)
    name, location = (named[1], named[2]) if named else (None, value)
    if location == STDIN:
        stdin = ListedFile(path=STDIN, relative="stdin", size=0, stamp="")
        return [_to_input_file(stdin, name or "stdin", file_format or "jsonl")]
    location = resolve_location(location)
    files, folder = list_files(location, storage)
    if not files:
        raise DataError(f"--input {value}: {explain_no_files(location)}")
    if folder is None:
        return [
            _to_input_file(file, f"{name}/{file.relative}" if name else file.relative, file_format)
            for file in files
        ]
    if file_format is None and any(file.relative == CARD_NAME for file in files):
        raise DataError(
            f"--input {value}: a dataset ({CARD_NAME} lies in it): its shards hold token ids, not "
            "text. Name the text that it was made from; MDS shards with a text column can be read "
            "with --format mds."
        )
    known = [file for file in files if _is_known(file, file_format)]
    if not known:
        raise DataError(
            f"--input {value}: {len(files)} file(s), none with a known ending "
            f"({', '.join(FORMATS_BY_SUFFIX)}). Name other files, or say what they are with "
            "--format."
        )
    return [
        _to_input_file(file, f"{name or folder}/{file.relative}", file_format) for file in known
    ]


def portable_name(value: str) -> str:
    """Return an `--input` value without the directories that lead to a local file."""
    named = NAMED_SOURCE.fullmatch(value)
    prefix, location = (f"{named[1]}=", named[2]) if named else ("", value)
    if location == STDIN or "://" in location:
        return value
    name = Path(location).name
    return prefix + (name if name not in ("", "..") else Path(location).resolve().name)


def _to_input_file(file: ListedFile, label: str, file_format: InputFormat | None) -> InputFile:
    known, compression = format_of(file.relative)
    if (file_format or known) is None:
        raise ConfigError(
            f"--input {file.path}: the ending does not say what the file holds. Say it, such as "
            "--format text or --format jsonl."
        )
    return InputFile(
        label=label,
        path=file.path,
        size=file.size,
        stamp=file.stamp,
        format=file_format or cast(InputFormat, known),
        compression=compression,
    )


def _is_known(file: ListedFile, file_format: InputFormat | None) -> bool:
    name = file.relative.rpartition("/")[2]
    return name not in METADATA_FILES and (
        file_format is not None or format_of(name)[0] is not None
    )


def format_of(name: str) -> tuple[InputFormat | None, str | None]:
    """Return the format and compression that a file name's endings tell; None where they do not."""
    path = Path(name.lower())
    compression = COMPRESSIONS.get(path.suffix)
    stem = Path(path.stem) if compression else path
    return FORMATS_BY_SUFFIX.get(stem.suffix), compression
