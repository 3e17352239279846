"""Write the output of one part.

Documents come in and are encoded and packed; shards are written when they are full, and a
`PartReceipt` comes out at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convert.encoding.encoders import Encoder
from convert.inputs.document import BadRecords, Document
from convert.jobs.conversion_job import STAGING, ConversionJob, id_hash
from convert.jobs.part_receipts import PartReceipt, SplitReceipt, part_name
from convert.output.best_fit import BestFitPacker
from convert.output.content_hash import RowsHash, hash_rows
from convert.output.mds_shards import encode_shard
from convert.output.packing import ConcatPacker, Ids, Lengths, Packer, add_special_tokens
from convert.output.provenance import parquet_bytes
from stream_pretrain.errors import StorageError
from stream_pretrain.storage.store import Store


def receipt_key(name: str) -> str:
    """Return the key of a part's receipt."""
    return f"{STAGING}/receipts/{name}.json"


def spans_key(name: str, split: str) -> str:
    """Return the key of a part's provenance until the dataset is published."""
    return f"{STAGING}/documents/{name}.{split}.parquet"


def ids_key(name: str) -> str:
    """Return the key of the hashes of a part's ids until publication (`--id_key` only)."""
    return f"{STAGING}/ids/{name}.u64"


def write_verified(store: Store, key: str, data: bytes) -> None:
    """Write a file, then check its size in a bucket: a proxy may have cut the body short."""
    store.write(key, data)
    if store.is_local:
        return
    info = store.head(key)
    if info is None or info.size != len(data):
        size = "absent" if info is None else f"{info.size} bytes"
        raise StorageError(
            f"{store.url(key)}: {size} after writing {len(data)} bytes. Run the command again.",
            "damaged",
        )


@dataclass
class _SplitState:
    """What was written of one split so far."""

    packer: Packer
    entries: list[Mapping[str, Any]] = field(default_factory=list)
    hash: RowsHash = field(default_factory=RowsHash)
    documents: int = 0
    tokens: int = 0
    text_bytes: int = 0


class PartWriter:
    """Collects a part's output by split, and writes it."""

    def __init__(self, job: ConversionJob, task: int, part: int) -> None:
        self._job, self._task, self._part = job, task, part
        self._name = part_name(task, part)
        self._splits: dict[str, _SplitState] = {}
        self._sources: dict[int, list[int]] = {}
        self._tallies: dict[str, int] = {}
        self._files: dict[str, int] = {}
        self._id_hashes: list[int] = []
        self.read = 0

    def count(self, name: str, number: int = 1) -> None:
        """Add to the tally `name`."""
        self._tallies[name] = self._tallies.get(name, 0) + number

    def add(self, documents: Sequence[Document], encoder: Encoder) -> None:
        """Encode documents and add the ids of each to its split."""
        if self._job.read_options.id_key:
            self._id_hashes += [id_hash(document.id) for document in documents]
        by_split: dict[str, list[Document]] = {}
        for document in documents:
            name = document.split or self._job.validation.split(document.id)
            by_split.setdefault(name, []).append(document)
        for name, chosen in by_split.items():
            self._add(name, chosen, encoder)

    def _add(self, name: str, documents: Sequence[Document], encoder: Encoder) -> None:
        split = self._split(name)
        texts = [document.text or "" for document in documents]
        ids, lengths = encoder.encode(texts)
        framed, sizes = self._frame(ids, lengths, documents)
        split.text_bytes += sum(
            len(text) if text.isascii() else len(text.encode()) for text in texts
        )
        split.documents += sum(document.has_start for document in documents)
        split.tokens += len(framed)
        for document, size in zip(documents, sizes.tolist(), strict=True):
            counts = self._sources.setdefault(document.file, [0, 0])
            counts[0] += document.has_start
            counts[1] += size
        for rows in split.packer.add(documents, framed, sizes):
            self._write_shard(name, split, rows)

    def finish(
        self, bad_records: BadRecords, *, is_last: bool, encoder: Mapping[str, str]
    ) -> PartReceipt:
        """Write the last shards and the provenance, and return the receipt."""
        if bad_records.count:
            self.count("bad_records", bad_records.count)
        if self._id_hashes:
            self._write(ids_key(self._name), np.array(self._id_hashes, "<u8").tobytes())
        return PartReceipt(
            task=self._task,
            part=self._part,
            read=self.read,
            is_last=is_last,
            splits={
                name: self._finish(name, split) for name, split in sorted(self._splits.items())
            },
            sources={file: (counts[0], counts[1]) for file, counts in self._sources.items()},
            tallies=self._tallies,
            files=self._files,
            bad_records=tuple(bad_records.messages),
            encoder=encoder,
        )

    def _finish(self, name: str, split: _SplitState) -> SplitReceipt:
        packed = split.packer.finish()
        per_shard = self._job.shard_format.rows_per_shard
        for begin in range(0, len(packed.rows), per_shard):
            self._write_shard(name, split, packed.rows[begin : begin + per_shard])
        table = packed.spans.table([file.label for file in self._job.files])
        self._write(spans_key(self._name, name), parquet_bytes(table))
        return SplitReceipt(
            entries=tuple(split.entries),
            rows=split.hash,
            tail=packed.tail,
            documents=split.documents,
            tokens=split.tokens,
            text_bytes=split.text_bytes,
            padding=packed.padding,
        )

    def _split(self, name: str) -> _SplitState:
        if name not in self._splits:
            shard_format, vocabulary = self._job.shard_format, self._job.vocabulary
            packer: Packer
            if self._job.packing == "best_fit":
                assert vocabulary.eos_id is not None
                packer = BestFitPacker(
                    shard_format.row_ids, vocabulary.numpy_dtype, vocabulary.eos_id
                )
            else:
                packer = ConcatPacker(
                    shard_format.row_ids, shard_format.rows_per_shard, vocabulary.numpy_dtype
                )
            self._splits[name] = _SplitState(packer=packer)
        return self._splits[name]

    def _frame(
        self, ids: NDArray[Any], lengths: Lengths, documents: Sequence[Document]
    ) -> tuple[Ids, Lengths]:
        """Return the ids with begin-of-text and end-of-text, and the documents' new lengths."""
        vocabulary = self._job.vocabulary
        eos = -1 if vocabulary.eos_id is None else vocabulary.eos_id
        bos = -1 if vocabulary.bos_id is None else vocabulary.bos_id
        count = len(documents)
        has_start = np.fromiter((document.has_start for document in documents), bool, count)
        has_end = np.fromiter((document.has_end for document in documents), bool, count)
        before, after = np.where(has_start, bos, -1), np.where(has_end, eos, -1)
        stored = ids.astype(vocabulary.numpy_dtype, copy=False)
        framed = add_special_tokens(stored, lengths, before=before, after=after)
        return framed, lengths + (before >= 0) + (after >= 0)

    def _write_shard(self, name: str, split: _SplitState, rows: Ids) -> None:
        shard = encode_shard(rows, self._job.shard_format, f"{self._name}-{len(split.entries):03}")
        self._write(f"{name}/{shard.name}", shard.data)
        split.entries.append(shard.entry)
        split.hash = split.hash.concat(hash_rows(rows))

    def _write(self, key: str, data: bytes) -> None:
        write_verified(self._job.store, key, data)
        self._files[key] = len(data)
