"""List the files at a location: a file, a directory, a glob or a URL.

A location comes in; its files in natural order, with sizes and stamps, come out, and the name of
the directory where it is one. The formats of the files are not looked at here.
"""

from __future__ import annotations

import fnmatch
import glob
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from stream_pretrain.config.sections import StorageConfig
from stream_pretrain.errors import ConfigError, DataError
from stream_pretrain.storage.location import is_remote
from stream_pretrain.storage.store import ObjectInfo, open_store


@dataclass(frozen=True, kw_only=True)
class ListedFile:
    """One file, whose format is not known yet; `relative` is its path below the location."""

    path: str
    relative: str
    size: int
    stamp: str


def resolve_location(location: str) -> str:
    """Return the location; for a Hugging Face dataset it is that of the cached local copy."""
    return _hugging_face(location) if location.startswith("hf://") else location


def list_files(location: str, storage: StorageConfig | None) -> tuple[list[ListedFile], str | None]:
    """Return the files at a location, and the directory's name; None where it is no directory."""
    return _remote(location, storage) if is_remote(location) else _local(location)


def explain_no_files(location: str) -> str:
    """Return what is at a location that gives no file, and what to do about it."""
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


def _local(location: str) -> tuple[list[ListedFile], str | None]:
    path = Path(location).expanduser()
    if path.is_dir():
        files = [file for file in path.rglob("*") if file.is_file()]
        listed = [_local_file(file, file.relative_to(path).as_posix()) for file in files]
        return _sorted_naturally(listed), path.resolve().name
    matches = [path] if path.is_file() else map(Path, glob.glob(str(path), recursive=True))  # noqa: PTH207 - absolute patterns too
    return _sorted_naturally(
        _local_file(file, file.name) for file in matches if file.is_file()
    ), None


def _local_file(file: Path, relative: str) -> ListedFile:
    stat = file.stat()
    return ListedFile(
        path=str(file), relative=relative, size=stat.st_size, stamp=str(stat.st_mtime_ns)
    )


def _remote(url: str, storage: StorageConfig | None) -> tuple[list[ListedFile], str | None]:
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


def _remote_files(root: str, infos: Iterable[ObjectInfo]) -> list[ListedFile]:
    return [
        ListedFile(path=f"{root}/{info.key}", relative=info.key, size=info.size, stamp=info.etag)
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


def _sorted_naturally(files: Iterable[ListedFile]) -> list[ListedFile]:
    return sorted(files, key=lambda file: natural_key(file.path))


def natural_key(text: str) -> list[tuple[int, int, str]]:
    """Return a sort key that puts `part-2` before `part-10`."""
    return [
        (0, int(piece), "") if piece.isdigit() else (1, 0, piece)
        for piece in re.split(r"([0-9]+)", text)
    ]
