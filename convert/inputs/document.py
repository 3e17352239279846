"""What readers give. In: nothing. Out: `Document`, `Reading`, `BadRecords`. Does not read."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

from stream_pretrain.config.sections import StorageConfig
from stream_pretrain.errors import DataError

TRAIN = "train"
VALIDATION = "validation"
SHOWN_BAD_RECORDS = 20


class Document(NamedTuple):
    """One text, or a piece of one that is cut: `begins` and `ends` say which of its ends it holds.

    `position` is the byte offset, or the row from 0, in file number `file`. `split` is set where
    the place in the file decides it. `text` None stands for null.
    """

    id: str
    text: str | None
    file: int
    position: int
    split: str | None = None
    begins: bool = True
    ends: bool = True


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How inputs are read: keys of text and id (dotted paths), the separator of plain texts, and
    the share at each file's end that is validation (0: none).
    """

    text_key: str = "text"
    id_key: str | None = None
    separator: str | None = None
    tail: Fraction = Fraction(0)
    storage: StorageConfig = field(default_factory=StorageConfig)


class BadRecordError(ValueError):
    """A record that gives no text: what was found and what to do. Its reader adds the place."""


@dataclass
class BadRecords:
    """What happens to malformed records: raise at the first, or count them and keep messages.

    `can_skip` is False for a command that has no such choice.
    """

    skip: bool = False
    can_skip: bool = True
    count: int = 0
    shown: list[str] = field(default_factory=list)

    def clear(self) -> None:
        """Begin to count anew."""
        self.count = 0
        self.shown = []

    def add(self, place: str, error: BadRecordError) -> None:
        """Raise `DataError`, or count."""
        if not self.skip:
            way_out = "; `--on_bad_record skip` leaves such records out." if self.can_skip else "."
            raise DataError(f"{place}: {error} Nothing was published{way_out}") from error
        self.count += 1
        if len(self.shown) < SHOWN_BAD_RECORDS:
            self.shown.append(f"{place}: {error}")


def look_up(record: Any, path: str, flag: str) -> Any:
    """The value at a dotted path; a key that itself holds dots is found first."""
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
            there = ", ".join(map(repr, list(value)[:12])) or "none"
            raise BadRecordError(f"no key {path!r}; the keys are {there}. Choose another {flag}.")
        value = value[key]
    return value


def checked_text(value: Any, key: str) -> str | None:
    """A record's text; `BadRecordError` where it is no text or no encoding can hold it."""
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
                f"{error.start + 1} of the text. Mend the record."
            ) from error
    return value
