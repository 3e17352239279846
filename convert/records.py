"""One JSON line -> a document's text and id. In: a line's bytes. Out: text, id or None. Does not read files.

What is wrong with a record is a `BadRecord`; whoever knows the file and the line turns it into a `DataError`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


class BadRecord(ValueError):
    """A record that gives no text; the message says what was found and what to do, the place is added by the reader."""


@dataclass(frozen=True, kw_only=True)
class Keys:
    """Where a record holds its text and, if it does, its id: dotted paths."""

    text: str
    id: str | None = None


def parse_record(line: bytes, keys: Keys) -> tuple[str | None, str | None]:
    """Text (None where it is null) and id (None where none is asked for)."""
    try:
        record = json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise BadRecord(
            f"invalid UTF-8 (byte 0x{line[error.start]:02x} at column {error.start + 1}). Convert the file to UTF-8."
        ) from error
    except ValueError as error:
        raise BadRecord(f"invalid JSON ({error}). Mend the line.") from error
    text = look_up(record, keys.text, "--text_key")
    if text is not None and not isinstance(text, str):
        raise BadRecord(
            f"{keys.text!r} holds a {type(text).__name__}, not text. Choose another --text_key."
        )
    return text, None if keys.id is None else str(look_up(record, keys.id, "--id_key"))


def look_up(record: Any, path: str, flag: str) -> Any:
    """The value at a dotted path; a key that itself holds dots is found first."""
    if isinstance(record, dict) and path in record:
        return record[path]
    value = record
    for key in path.split("."):
        if not isinstance(value, dict):
            raise BadRecord(
                f"no key {path!r}: the record is a {type(value).__name__} there. Choose another {flag}."
            )
        if key not in value:
            there = ", ".join(map(repr, list(value)[:12])) or "no keys"
            raise BadRecord(f"no key {path!r}; the keys there are {there}. Choose another {flag}.")
        value = value[key]
    return value
