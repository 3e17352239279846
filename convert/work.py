"""One part, from text to shards. In: a `Job` and a `Part`. Out: files in the output and a `Receipt`, written last.

A function of its arguments: no state passes from one part to the next, so any worker may do any part, in any order, or
twice. Does not schedule.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convert.content import RowsHash, hash_rows
from convert.documents import Pieces, parquet_bytes
from convert.encode import ByteEncoder, Encoder, TokenizersEncoder
from convert.job import STAGING, Job
from convert.pack import Rows, with_borders
from convert.parts import Part
from convert.readers import BadRecords, Document, read_part
from convert.receipts import Receipt, SplitReceipt
from convert.shards import encode_shard

BATCH_CHARACTERS = 4 << 20


class Worker:
    """Converts parts of one job; holds the loaded tokenizer."""

    def __init__(self, job: Job) -> None:
        """Load the encoder once."""
        self._job = job
        self._encoder = make_encoder(job)

    def convert(self, part: Part) -> Receipt:
        """Read, encode, pack and write a part; its receipt is the last thing written."""
        result = _PartResult(self._job, part)
        bad = BadRecords(skip=self._job.skip_bad_records)
        documents = read_part(part, self._job.files, self._job.reading, bad)
        for batch in _batches(self._kept(documents, result)):
            for split, chosen in _by_split(batch, self._job).items():
                result.add(split, chosen, self._encoder)
        receipt = result.finish(bad)
        self._job.place.write(receipt_key(part), receipt.to_json())
        return receipt

    def _kept(self, documents: Iterator[Document], result: _PartResult) -> Iterator[Document]:
        rules = self._job.text
        for document in documents:
            size = len(document.text or "")
            whole = document.begins and document.ends
            if size == 0:
                result.count("empty")
            elif whole and size < rules.min_chars:
                result.count("too_short")
            elif whole and rules.max_chars is not None and size > rules.max_chars:
                result.count("too_long")
            else:
                yield document


def receipt_key(part: Part) -> str:
    """Where a part's receipt lies."""
    return f"{STAGING}/{part.name}.json"


def pieces_key(part_name: str, split: str) -> str:
    """Where a part's provenance lies until the dataset is published."""
    return f"{STAGING}/{part_name}.{split}.parquet"


def make_encoder(job: Job) -> Encoder:
    """The encoder that the job's check has chosen."""
    if job.encoder == "bytes":
        return ByteEncoder()
    return TokenizersEncoder(job.vocabulary, job.text.special_in_text)


@dataclass
class _SplitResult:
    rows: Rows
    pieces: Pieces = field(default_factory=Pieces)
    entries: list[Any] = field(default_factory=list)
    hash: RowsHash = field(default_factory=RowsHash)
    documents: int = 0
    tokens: int = 0
    text_bytes: int = 0


class _PartResult:
    """Gathers one part's output by split and writes each shard when it is full."""

    def __init__(self, job: Job, part: Part) -> None:
        self._job, self._part = job, part
        self._splits: dict[str, _SplitResult] = {}
        self._sources: dict[int, list[int]] = {}
        self._tallies: dict[str, int] = {}
        self._files: dict[str, int] = {}

    def count(self, what: str, number: int = 1) -> None:
        """Add to a tally."""
        self._tallies[what] = self._tallies.get(what, 0) + number

    def add(self, split: str, documents: Sequence[Document], encoder: Encoder) -> None:
        """Encode documents of one split and append their ids."""
        result = self._split(split)
        texts = [document.text or "" for document in documents]
        ids, lengths = encoder.encode(texts)
        framed, sizes = self._frame(ids, lengths, documents)
        result.text_bytes += sum(
            len(text) if text.isascii() else len(text.encode()) for text in texts
        )
        result.documents += sum(document.begins for document in documents)
        result.tokens += len(framed)
        result.pieces.add(documents, sizes)
        for document, size in zip(documents, sizes.tolist(), strict=True):
            counts = self._sources.setdefault(document.file, [0, 0])
            counts[0] += document.begins
            counts[1] += size
        for rows in result.rows.add(framed):
            self._write_shard(split, result, rows)

    def finish(self, bad: BadRecords) -> Receipt:
        """Write the last shards and the provenance."""
        if bad.count:
            self.count("bad_records", bad.count)
        splits = {}
        for name, result in sorted(self._splits.items()):
            rows, tail = result.rows.finish()
            if len(rows):
                self._write_shard(name, result, rows)
            self._write_pieces(name, result)
            splits[name] = SplitReceipt(
                entries=tuple(result.entries),
                rows=result.hash,
                tail=tail,
                documents=result.documents,
                tokens=result.tokens,
                text_bytes=result.text_bytes,
            )
        return Receipt(
            part=self._part.index,
            splits=splits,
            sources={file: (counts[0], counts[1]) for file, counts in self._sources.items()},
            tallies=self._tallies,
            files=self._files,
            bad_records=tuple(bad.shown),
        )

    def _split(self, name: str) -> _SplitResult:
        if name not in self._splits:
            form = self._job.shards
            rows = Rows(form.row_ids, form.rows_per_shard, self._job.vocabulary.numpy_dtype)
            self._splits[name] = _SplitResult(rows=rows)
        return self._splits[name]

    def _frame(
        self, ids: NDArray[Any], lengths: NDArray[np.int64], documents: Sequence[Document]
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        eos, bos = self._job.vocabulary.eos_id, self._job.vocabulary.bos_id
        count = len(documents)
        begins = np.fromiter((document.begins for document in documents), bool, count)
        ends = np.fromiter((document.ends for document in documents), bool, count)
        before = np.where(begins, -1 if bos is None else bos, -1)
        after = np.where(ends, -1 if eos is None else eos, -1)
        wide = ids.astype(self._job.vocabulary.numpy_dtype, copy=False)
        return with_borders(wide, lengths, before=before, after=after), lengths + (before >= 0) + (
            after >= 0
        )

    def _write_shard(self, split: str, result: _SplitResult, rows: NDArray[Any]) -> None:
        shard = encode_shard(rows, self._job.shards, f"{self._part.name}-{len(result.entries):03}")
        self._write(f"{split}/{shard.name}", shard.data)
        result.entries.append(shard.entry)
        result.hash = result.hash.then(hash_rows(rows))

    def _write_pieces(self, split: str, result: _SplitResult) -> None:
        table = result.pieces.table([file.label for file in self._job.files])
        self._write(pieces_key(self._part.name, split), parquet_bytes(table))

    def _write(self, key: str, data: bytes) -> None:
        self._job.place.write(key, data)
        self._files[key] = len(data)


def _batches(documents: Iterator[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += len(document.text or "")
        if size >= BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _by_split(batch: Sequence[Document], job: Job) -> dict[str, list[Document]]:
    chosen: dict[str, list[Document]] = {}
    for document in batch:
        chosen.setdefault(document.split or job.validation.split(document.id), []).append(document)
    return chosen
