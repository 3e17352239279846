"""Define what the readers share: `Document`, `ReadOptions` and the handling of bad records."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

from stream_pretrain.config.sections import StorageConfig
from stream_pretrain.errors import DataError

TRAIN = "train"
VALIDATION = "validation"
MAX_BAD_RECORD_MESSAGES = 20


class Document(NamedTuple):
    """One text, or one piece of a text that is too long for one part.

    `position` is the byte offset, or the row from 0, in file number `file`. `split` is set where
    the position in the file decides it. `text` is None where the record holds null. `has_start` and
    `has_end` tell whether a piece holds the first and the last character of its text.
    """

    id: str
    text: str | None
    file: int
    position: int
    split: str | None = None
    has_start: bool = True
    has_end: bool = True


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How inputs are read.

    `text_key` and `id_key` are keys or columns (dotted paths), `separator` is the string between
    the documents of a plain text, and `tail` is the share at the end of each file that is
    validation (0: none).
    """

    text_key: str = "text"
    id_key: str | None = None
    separator: str | None = None
    tail: Fraction = Fraction(0)
    storage: StorageConfig = field(default_factory=StorageConfig)


class BadRecordError(ValueError):
    """A record that gives no text. It says what is wrong and what to do; its reader says where."""


@dataclass
class BadRecords:
    """Handles malformed records: raises at the first one, or counts them and keeps messages.

    `can_skip` is False for a command that cannot skip records.
    """

    skip: bool = False
    can_skip: bool = True
    count: int = 0
    messages: list[str] = field(default_factory=list)

    def reset(self) -> None:
        """Forget what was counted, at the start of a new part."""
        self.count = 0
        self.messages = []

    def add(self, location: str, error: BadRecordError) -> None:
        """Count a bad record, or raise `DataError`."""
        if not self.skip:
            hint = "; `--on_bad_record skip` leaves such records out." if self.can_skip else "."
            raise DataError(f"{location}: {error} Nothing was published{hint}") from error
        self.count += 1
        if len(self.messages) < MAX_BAD_RECORD_MESSAGES:
            self.messages.append(f"{location}: {error}")


def lookup_path(record: Any, path: str, flag: str) -> Any:
    """Return the value at a dotted path; a key that contains the dots itself wins."""
    if isinstance(record, dict) and path in record:
        return record[path]
    value = record
    for key in path.split("."):
        if not isinstance(value, dict):
            kind = type(value).__name__
            raise BadRecordError(
                f"no key {path!r}: there is a {kind} there. Choose another {flag}."
            )
        if key not in value:
            keys = ", ".join(map(repr, list(value)[:12])) or "none"
            raise BadRecordError(f"no key {path!r}; the keys are {keys}. Choose another {flag}.")
        value = value[key]
    return value


def validated_text(value: Any, key: str) -> str | None:
    """Return a record's text; raise `BadRecordError` where it is not text or not Unicode."""
    if value is None:
        return None
    if not isinstance(value, str):
        kind = type(value).__name__
        raise BadRecordError(f"{key!r} holds a {kind}, not text. Choose another --text_key.")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise BadRecordError(
                f"half a surrogate pair (U+{ord(value[error.start]):04X}) at character "
                f"{error.start + 1} of the text. Fix the record."
            ) from error
    return value
