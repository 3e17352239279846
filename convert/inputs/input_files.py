"""List the files that a job reads.

The `--input` values come in, and `InputFile`s come out, in natural order. `NAME=PATH` names a
source. A directory or prefix stands for every file below it with a known ending, and a glob for
what it matches. A file's label (source name and relative path) is part of the ids of its documents,
so these do not depend on the directory of the corpus. The contents of the files are not read.
"""

from __future__ import annotations

import fnmatch
import glob
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from convert.config import InputFormat
from stream_pretrain.config.sections import StorageConfig
from stream_pretrain.errors import ConfigError, DataError
from stream_pretrain.schema import CARD_NAME
from stream_pretrain.storage.location import is_remote
from stream_pretrain.storage.store import ObjectInfo, open_store

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


@dataclass(frozen=True, kw_only=True)
class _ListedFile:
    """A file whose format is not known yet."""

    path: str
    relative: str
    size: int
    stamp: str


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
        stdin = _ListedFile(path=STDIN, relative="stdin", size=0, stamp="")
        return [_to_input_file(stdin, name or "stdin", file_format or "jsonl")]
    if location.startswith("hf://"):
        location = _hugging_face(location)
    list_files: Callable[[str], tuple[list[_ListedFile], str | None]] = (
        (lambda url: _remote(url, storage)) if is_remote(location) else _local
    )
    files, folder = list_files(location)
    if not files:
        raise DataError(f"--input {value}: {_explain_no_files(location)}")
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


def _explain_no_files(location: str) -> str:
    """Say what is at a location that gives no file, and what to do."""
    if is_remote(location):
        return "no such file, directory or match. Check the URL."
    path = Path(location).expanduser()
    if path.is_dir():
        return "a directory without files. Name one that holds text."
    for kind, is_kind in (
        ("a pipe (FIFO)", path.is_fifo),
        ("a socket", path.is_socket),
        ("a device", path.is_char_device),
        ("a device", path.is_block_device),
    ):
        if is_kind():
            return (
                f"{kind}, which cannot be read twice or cut. Give it as standard input: --input -"
            )
    if path.is_symlink():
        return f"a link to {path.readlink()}, which is not there. Check the path."
    return "no such file, directory or match. Check the path."


def portable_name(value: str) -> str:
    """Return an `--input` value without the directories that lead to a local file."""
    named = NAMED_SOURCE.fullmatch(value)
    prefix, location = (f"{named[1]}=", named[2]) if named else ("", value)
    if location == STDIN or "://" in location:
        return value
    name = Path(location).name
    return prefix + (name if name not in ("", "..") else Path(location).resolve().name)


def _local(location: str) -> tuple[list[_ListedFile], str | None]:
    path = Path(location).expanduser()
    if path.is_dir():
        files = [file for file in path.rglob("*") if file.is_file()]
        listed = [_local_file(file, file.relative_to(path).as_posix()) for file in files]
        return _sorted_naturally(listed), path.resolve().name
    matches = [path] if path.is_file() else map(Path, glob.glob(str(path), recursive=True))  # noqa: PTH207 - absolute patterns too
    return _sorted_naturally(
        _local_file(file, file.name) for file in matches if file.is_file()
    ), None


def _local_file(file: Path, relative: str) -> _ListedFile:
    stat = file.stat()
    return _ListedFile(
        path=str(file), relative=relative, size=stat.st_size, stamp=str(stat.st_mtime_ns)
    )


def _remote(url: str, storage: StorageConfig | None) -> tuple[list[_ListedFile], str | None]:
    fixed = re.split(r"[*?\[]", url, maxsplit=1)[0]
    if fixed != url:
        root = fixed.rpartition("/")[0]
        matching = [
            file
            for file in _remote_files(root, open_store(root, storage).list())
            if fnmatch.fnmatchcase(file.path, url)
        ]
        return _sorted_naturally(matching), None
    parent, _, name = url.rstrip("/").rpartition("/")
    info = None if parent.endswith("/") else open_store(parent, storage).head(name)
    if info is not None:
        return _remote_files(parent, [info]), None
    return _sorted_naturally(_remote_files(url.rstrip("/"), open_store(url, storage).list())), name


def _remote_files(root: str, infos: Iterable[ObjectInfo]) -> list[_ListedFile]:
    return [
        _ListedFile(path=f"{root}/{info.key}", relative=info.key, size=info.size, stamp=info.etag)
        for info in infos
    ]


def _hugging_face(location: str) -> str:
    """Return the cached local copy of `hf://datasets/ORG/NAME[@REVISION]/PATTERN`."""
    parts = location.removeprefix("hf://datasets/").split("/", 2)
    if not location.startswith("hf://datasets/") or len(parts) < 2:
        raise ConfigError(
            f"--input {location}: must be hf://datasets/ORG/NAME[@REVISION] or a path or pattern "
            "below it."
        )
    from huggingface_hub import snapshot_download

    name, _, revision = parts[1].partition("@")
    pattern = parts[2] if len(parts) > 2 else None
    try:
        folder = snapshot_download(
            f"{parts[0]}/{name}",
            repo_type="dataset",
            revision=revision or None,
            allow_patterns=pattern,
        )
    except Exception as error:  # the library raises its own, requests' and OS errors
        raise DataError(
            f"--input {location}: cannot be fetched ({type(error).__name__}: {error}). Check the "
            "name, HF_TOKEN and the network, or download it and name the directory."
        ) from error
    return f"{folder}/{pattern}" if pattern else folder


def _to_input_file(file: _ListedFile, label: str, file_format: InputFormat | None) -> InputFile:
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


def _is_known(file: _ListedFile, file_format: InputFormat | None) -> bool:
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


def _sorted_naturally(files: Iterable[_ListedFile]) -> list[_ListedFile]:
    return sorted(files, key=lambda file: natural_key(file.path))


def natural_key(text: str) -> list[tuple[int, int, str]]:
    """Return a sort key that puts `part-2` before `part-10`."""
    return [
        (0, int(piece), "") if piece.isdigit() else (1, 0, piece)
        for piece in re.split(r"([0-9]+)", text)
    ]
