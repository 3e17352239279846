"""One task, from text to shards. In: a `ConversionJob` and a `Task`. Out: files and, last, a
receipt a part.

A function of its arguments: nothing passes from one task to the next, so any worker may do any
task, in any order, or twice. Does not schedule.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from itertools import chain, islice

from convert.encoding.encoder_check import Choice, choose_encoder, guard_part
from convert.encoding.encoders import Encoder, malloc_trim, special_pattern
from convert.encoding.fallback_encoder import FallbackEncoder
from convert.inputs.document import BadRecords, Document
from convert.inputs.read_task import read_task
from convert.inputs.tasks import Task, plan_tasks
from convert.jobs.conversion_job import ConversionJob, TextRules, id_hash
from convert.jobs.part_receipts import PartReceipt
from convert.jobs.part_writer import PartResult, receipt_key

BATCH_CHARACTERS = 1 << 19

Report = Callable[[int, int, int], None]
"""Called with (input bytes, documents, tokens) that were just finished."""


class Worker:
    """Converts tasks of one job; holds the loaded tokenizers."""

    def __init__(
        self, job: ConversionJob, report: Report = lambda _size, _documents, _tokens: None
    ) -> None:
        """Load nothing yet: hashing needs no tokenizer."""
        self.job = job
        self._report = report
        self._loaded: tuple[Choice, Encoder] | None = None
        self._specials = special_pattern(job.vocabulary)

    def convert(self, task: Task, done: Mapping[int, PartReceipt]) -> list[PartReceipt]:
        """All parts of a task; those in `done` are passed over. Receipts of the others."""
        choice, encoder = self._chosen()
        bad = BadRecords(skip=self.job.skip_bad_records)
        documents = _Ahead(read_task(task, self.job.files, self.job.reading, bad))
        receipts: list[PartReceipt] = []
        part = _pass_over(documents, done)
        is_last = part > 0 and done[part - 1].is_last
        while not is_last:
            bad.clear()
            result = PartResult(self.job, task.index, part)
            limit = self.job.part_bytes if task.is_chain else None
            self._convert_part(result, documents, limit, encoder)
            is_last = documents.is_empty()
            receipt = result.finish(bad, is_last=is_last, encoder=asdict(choice))
            self.job.store.write(receipt_key(receipt.name), receipt.to_json())
            self._tell(task, receipt)
            receipts.append(receipt)
            part += 1
            malloc_trim()
        return receipts

    def smallest_hashes(self, task: Task, number: int) -> list[int]:
        """The `number` smallest hashes of the ids of documents that are kept."""
        bad = BadRecords(skip=self.job.skip_bad_records)
        documents = read_task(task, self.job.files, self.job.reading, bad)
        rules = self.job.text
        kept = (item for item in documents if left_out(item, rules) is None and item.begins)
        return heapq.nsmallest(number, (id_hash(document.id) for document in kept))

    def _convert_part(
        self,
        result: PartResult,
        documents: Iterator[Document],
        limit: int | None,
        encoder: Encoder,
    ) -> None:
        is_guarded = not isinstance(encoder, FallbackEncoder)
        for batch in _batches(documents, limit):
            result.read += len(batch)
            kept = [item for item in batch if not self._leave_out(item, result)]
            if kept and not is_guarded and isinstance(encoder, FallbackEncoder):
                guard_part(encoder, kept[0].text or "", kept[0].id)
                is_guarded = True
            if self._specials is not None:
                for document in kept:
                    found = self._specials.findall(document.text or "")
                    if found:
                        result.count("special_strings", len(found))
            result.add(kept, encoder)

    def _chosen(self) -> tuple[Choice, Encoder]:
        """Each worker settles for itself which encoder it may use; the ids are the same."""
        if self._loaded is None:
            job = self.job
            special = job.text.special_in_text
            self._loaded = choose_encoder(job.encoder, job.vocabulary, special, self._first_texts())
            malloc_trim()
        return self._loaded

    def _first_texts(self) -> Iterator[str]:
        """The job's own first documents, if they can be read twice."""
        job = self.job
        if any(file.is_stdin for file in job.files):
            return
        bad = BadRecords(skip=job.skip_bad_records)
        for task in plan_tasks(job.files, job.part_bytes):
            for document in read_task(task, job.files, job.reading, bad):
                if left_out(document, job.text) is None:
                    yield document.text or ""

    def _leave_out(self, document: Document, result: PartResult) -> bool:
        why = left_out(document, self.job.text)
        if why is not None:
            result.count(why)
        return why is not None

    def _tell(self, task: Task, receipt: PartReceipt) -> None:
        size = task.size if receipt.is_last else 0
        splits = receipt.splits.values()
        documents = sum(split.documents for split in splits)
        self._report(size, documents, sum(split.tokens for split in splits))


def left_out(document: Document, rules: TextRules) -> str | None:
    """Why a document is left out, or None. Pieces of a cut text are only tested for emptiness."""
    size = len(document.text or "")
    if size == 0:
        return "empty"
    if not (document.begins and document.ends):
        return None
    if size < rules.min_chars:
        return "too_short"
    if rules.max_chars is not None and size > rules.max_chars:
        return "too_long"
    return None


class _Ahead(Iterator[Document]):
    """Documents that can be asked whether there are more."""

    def __init__(self, documents: Iterator[Document]) -> None:
        self._documents = documents

    def __next__(self) -> Document:
        return next(self._documents)

    def is_empty(self) -> bool:
        """Reads one document ahead."""
        following = next(self._documents, None)
        if following is None:
            return True
        self._documents = chain((following,), self._documents)
        return False


def _pass_over(documents: _Ahead, done: Mapping[int, PartReceipt]) -> int:
    """Read past the parts that are done; the number of the first that is not."""
    part = 0
    while part in done:
        if done[part].is_last:
            return part + 1
        next(islice(documents, done[part].read - 1, done[part].read), None)
        documents.is_empty()  # as when the part was made: bad records up to here are its own
        part += 1
    return part


def _batches(documents: Iterator[Document], limit: int | None) -> Iterator[list[Document]]:
    """Lists of documents of bounded size; stops behind the document that reaches `limit`
    characters."""
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
