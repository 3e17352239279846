"""Define the receipt of a finished part, and its form in JSON. No file is written here."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convert.output.content_hash import RowsHash


def part_name(task: int, part: int) -> str:
    """Return the stem of all files of a part; the names sort in stream order."""
    return f"{task:06}-{part:04}"


@dataclass(frozen=True, kw_only=True)
class SplitReceipt:
    """One split of a part: its shards' index entries, its rows' hash, the ids left over."""

    entries: tuple[Mapping[str, Any], ...]
    rows: RowsHash
    tail: NDArray[Any]
    documents: int
    tokens: int
    text_bytes: int
    padding: int = 0


@dataclass(frozen=True, kw_only=True)
class PartReceipt:
    """The receipt of a part: every file that it names was written before it.

    `read` is the number of documents that were read, and `is_last` marks the last part of a task.
    `sources` holds (documents, tokens) by file number, `tallies` the counts of documents left out
    and the like, `files` sizes by key, and `encoder` which encoder ran and why.
    """

    task: int
    part: int
    read: int
    is_last: bool
    splits: Mapping[str, SplitReceipt]
    sources: Mapping[int, tuple[int, int]]
    tallies: Mapping[str, int]
    files: Mapping[str, int]
    bad_records: tuple[str, ...] = field(default=())
    encoder: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The stem of the part's files."""
        return part_name(self.task, self.part)

    def to_json(self) -> bytes:
        """Return the receipt as a JSON object."""
        plain = {item.name: getattr(self, item.name) for item in fields(self)}
        plain["splits"] = {name: _split_to_plain(split) for name, split in self.splits.items()}
        return json.dumps(plain, sort_keys=True).encode()

    @classmethod
    def from_json(cls, data: bytes) -> PartReceipt:
        """Return the receipt that `to_json` wrote."""
        plain = json.loads(data)
        return cls(
            task=plain["task"],
            part=plain["part"],
            read=plain["read"],
            is_last=plain["is_last"],
            splits={name: _split_from_plain(split) for name, split in plain["splits"].items()},
            sources={
                int(file): (counts[0], counts[1]) for file, counts in plain["sources"].items()
            },
            tallies=plain["tallies"],
            files=plain["files"],
            bad_records=tuple(plain["bad_records"]),
            encoder=plain["encoder"],
        )


def _split_to_plain(split: SplitReceipt) -> dict[str, Any]:
    tail = base64.b64encode(np.ascontiguousarray(split.tail, dtype="<u4").tobytes()).decode()
    plain = {key: getattr(split, key) for key in ("documents", "tokens", "text_bytes", "padding")}
    return {**plain, "entries": list(split.entries), "rows": split.rows.to_plain(), "tail": tail}


def _split_from_plain(plain: dict[str, Any]) -> SplitReceipt:
    return SplitReceipt(
        entries=tuple(plain["entries"]),
        rows=RowsHash.from_plain(plain["rows"]),
        tail=np.frombuffer(base64.b64decode(plain["tail"]), dtype="<u4"),
        documents=plain["documents"],
        tokens=plain["tokens"],
        text_bytes=plain["text_bytes"],
        padding=plain["padding"],
    )
