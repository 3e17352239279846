"""Parse paths and bucket URLs into `Location`.

No disk or network is touched. A location with credentials in it is refused, because locations are
written into configs, logs and messages.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from stream_pretrain.errors import StorageError

SCHEMES = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gs",
    "gcs": "gs",
    "az": "az",
    "azure": "az",
    "abfs": "az",
}
_URL = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://(.*)$", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Location:
    """A local directory or a prefix in a bucket.

    `scheme` is `file`, `s3`, `gs` or `az`. For `file`, `bucket` is empty and `prefix` is a path.
    """

    scheme: str
    bucket: str
    prefix: str

    def __str__(self) -> str:
        return self.url()

    @property
    def is_local(self) -> bool:
        """True for a path on this machine."""
        return self.scheme == "file"

    def key(self, name: str = "") -> str:
        """Return the key, from the bucket's root, of the object `name` below this location."""
        return "/".join(part for part in (self.prefix, name.strip("/")) if part)

    def url(self, name: str = "") -> str:
        """Return the path or URL of the object `name` below this location."""
        if self.is_local:
            return str(Path(self.prefix) / name) if name else self.prefix
        return f"{self.scheme}://" + "/".join(p for p in (self.bucket, self.key(name)) if p)

    def child(self, name: str) -> Location:
        """Return the location `name` below this one."""
        prefix = str(Path(self.prefix) / name) if self.is_local else self.key(name)
        return Location(scheme=self.scheme, bucket=self.bucket, prefix=prefix)


def is_remote(location: str | Path) -> bool:
    """Return True when `location` is the URL of a bucket and not a local path."""
    match = _URL.match(str(location))
    return match is not None and match.group(1).lower() != "file"


def parse_location(location: str | Path) -> Location:
    """Parse a path or a `file://`, `s3://`, `gs://` or `az://` URL.

    Raises:
        StorageError: the scheme is another one, or the location is malformed or holds credentials.
    """
    text = str(location)
    match = _URL.match(text)
    if match is None:
        return _local(text)
    scheme, rest = match.group(1).lower(), match.group(2)
    if scheme == "file":
        return _local(rest)
    if scheme not in SCHEMES:
        raise StorageError(
            f"{scheme}://…: the scheme must be one of s3, gs, az, file or a plain path, got "
            f"{scheme!r}."
        )
    return _bucket(SCHEMES[scheme], rest)


def join(location: str | Path, name: str) -> str:
    """Return the path or URL of `name` below `location`."""
    return parse_location(location).child(name).url()


def _local(text: str) -> Location:
    if not text:
        raise StorageError("a location must be a path or a URL, got an empty string.")
    if "\0" in text:
        raise StorageError(f"{text!r}: a path must not hold a NUL byte.")
    return Location(scheme="file", bucket="", prefix=str(Path(text).expanduser()))


def _bucket(scheme: str, rest: str) -> Location:
    bucket, _, prefix = rest.partition("/")
    if "@" in bucket:
        raise StorageError(
            f"{scheme}://…@{bucket.rpartition('@')[2]}: a location must not hold credentials. "
            "Put them into the environment or a profile (storage.profile)."
        )
    if "?" in rest or "#" in rest:
        bare = re.split(r"[?#]", rest)[0]
        raise StorageError(
            f"{scheme}://{bare}: a location must not hold a query or fragment. "
            "Put tokens into the environment and the endpoint into storage.endpoint_url."
        )
    if not bucket:
        raise StorageError(f"{scheme}://{rest}: the name of the bucket is missing.")
    parts = [part for part in prefix.split("/") if part]
    if any(part in (".", "..") for part in parts):
        raise StorageError(f"{scheme}://{rest}: a bucket location must not hold '.' or '..' parts.")
    return Location(scheme=scheme, bucket=bucket, prefix="/".join(parts))
