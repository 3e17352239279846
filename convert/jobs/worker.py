"""Convert one task, from text to shards.

A `ConversionJob` and a `Task` come in; the files of each part and, last, its receipt are written.
The output is a function of these arguments alone: nothing passes from one task to the next, so any
worker may convert any task, in any order, or twice. Tasks are not scheduled here.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from itertools import chain, islice

from convert.encoding.encoder_check import ChosenEncoder, check_part, choose_encoder
from convert.encoding.encoders import Encoder, malloc_trim, special_pattern
from convert.encoding.fallback_encoder import FallbackEncoder
from convert.inputs.document import BadRecords, Document
from convert.inputs.read_task import read_task
from convert.inputs.tasks import Task, plan_tasks
from convert.jobs.conversion_job import ConversionJob, TextRules, id_hash
from convert.jobs.part_receipts import PartReceipt
from convert.jobs.part_writer import PartWriter, receipt_key

BATCH_CHARACTERS = 1 << 19

ReportProgress = Callable[[int, int, int], None]
"""Called with (input bytes, documents, tokens) that were just finished."""


class Worker:
    """Converts tasks of one job, and keeps the loaded tokenizers."""

    def __init__(
        self, job: ConversionJob, report: ReportProgress = lambda _size, _documents, _tokens: None
    ) -> None:
        """Load no tokenizer yet: hashing needs none."""
        self.job = job
        self._report = report
        self._encoder: tuple[ChosenEncoder, Encoder] | None = None
        self._specials = special_pattern(job.vocabulary)

    def convert(self, task: Task, done: Mapping[int, PartReceipt]) -> list[PartReceipt]:
        """Convert the parts of a task that are not in `done`, and return their receipts."""
        choice, encoder = self._load_encoder()
        bad_records = BadRecords(skip=self.job.skip_bad_records)
        documents = _PeekableDocuments(
            read_task(task, self.job.files, self.job.read_options, bad_records)
        )
        receipts: list[PartReceipt] = []
        part = _skip_done_parts(documents, done)
        is_last = part > 0 and done[part - 1].is_last
        while not is_last:
            bad_records.reset()
            writer = PartWriter(self.job, task.index, part)
            limit = self.job.part_bytes if task.has_several_parts else None
            self._convert_part(writer, documents, limit, encoder)
            is_last = documents.is_empty()
            receipt = writer.finish(bad_records, is_last=is_last, encoder=asdict(choice))
            self.job.store.write(receipt_key(receipt.name), receipt.to_json())
            self._report_part(task, receipt)
            receipts.append(receipt)
            part += 1
            malloc_trim()
        return receipts

    def smallest_hashes(self, task: Task, number: int) -> list[int]:
        """Return the `number` smallest hashes of the ids of documents that are kept."""
        bad_records = BadRecords(skip=self.job.skip_bad_records)
        documents = read_task(task, self.job.files, self.job.read_options, bad_records)
        rules = self.job.text_rules
        kept = (item for item in documents if skip_reason(item, rules) is None and item.has_start)
        return heapq.nsmallest(number, (id_hash(document.id) for document in kept))

    def _convert_part(
        self,
        writer: PartWriter,
        documents: Iterator[Document],
        limit: int | None,
        encoder: Encoder,
    ) -> None:
        is_checked = not isinstance(encoder, FallbackEncoder)
        for batch in _batches(documents, limit):
            writer.read += len(batch)
            kept = [item for item in batch if not self._is_skipped(item, writer)]
            if kept and not is_checked and isinstance(encoder, FallbackEncoder):
                check_part(encoder, kept[0].text or "", kept[0].id)
                is_checked = True
            if self._specials is not None:
                for document in kept:
                    matches = self._specials.findall(document.text or "")
                    if matches:
                        writer.count("special_strings", len(matches))
            writer.add(kept, encoder)

    def _load_encoder(self) -> tuple[ChosenEncoder, Encoder]:
        """Choose and load the encoder; workers may differ in it, and the ids are the same."""
        if self._encoder is None:
            job = self.job
            special = job.text_rules.special_in_text
            self._encoder = choose_encoder(
                job.encoder, job.vocabulary, special, self._first_texts()
            )
            malloc_trim()
        return self._encoder

    def _first_texts(self) -> Iterator[str]:
        """Yield the texts of the job's first documents, if the inputs can be read twice."""
        job = self.job
        if any(file.is_stdin for file in job.files):
            return
        bad_records = BadRecords(skip=job.skip_bad_records)
        for task in plan_tasks(job.files, job.part_bytes):
            for document in read_task(task, job.files, job.read_options, bad_records):
                if skip_reason(document, job.text_rules) is None:
                    yield document.text or ""

    def _is_skipped(self, document: Document, writer: PartWriter) -> bool:
        reason = skip_reason(document, self.job.text_rules)
        if reason is not None:
            writer.count(reason)
        return reason is not None

    def _report_part(self, task: Task, receipt: PartReceipt) -> None:
        size = task.size if receipt.is_last else 0
        splits = receipt.splits.values()
        documents = sum(split.documents for split in splits)
        self._report(size, documents, sum(split.tokens for split in splits))


def skip_reason(document: Document, rules: TextRules) -> str | None:
    """Return why a document is left out, or None.

    A piece of a text is only tested for emptiness.
    """
    size = len(document.text or "")
    if size == 0:
        return "empty"
    if not (document.has_start and document.has_end):
        return None
    if size < rules.min_chars:
        return "too_short"
    if rules.max_chars is not None and size > rules.max_chars:
        return "too_long"
    return None


class _PeekableDocuments(Iterator[Document]):
    """Iterates over documents, and tells whether more follow."""

    def __init__(self, documents: Iterator[Document]) -> None:
        self._documents = documents

    def __next__(self) -> Document:
        return next(self._documents)

    def is_empty(self) -> bool:
        """Return True at the end of the documents; this reads one document ahead."""
        following = next(self._documents, None)
        if following is None:
            return True
        self._documents = chain((following,), self._documents)
        return False


def _skip_done_parts(documents: _PeekableDocuments, done: Mapping[int, PartReceipt]) -> int:
    """Read past the parts that are done, and return the number of the first that is not."""
    part = 0
    while part in done:
        if done[part].is_last:
            return part + 1
        next(islice(documents, done[part].read - 1, done[part].read), None)
        documents.is_empty()  # as when the part was made: bad records so far are its own
        part += 1
    return part


def _batches(documents: Iterator[Document], limit: int | None) -> Iterator[list[Document]]:
    """Yield documents in lists of bounded size, up to the one that reaches `limit` characters."""
    batch: list[Document] = []
    size = total = 0
    for document in documents:
        batch.append(document)
        size += len(document.text or "")
        total += len(document.text or "")
        is_full = limit is not None and total >= limit
        if size >= BATCH_CHARACTERS or is_full:
            yield batch
            batch, size = [], 0
        if is_full:
            return
    if batch:
        yield batch
