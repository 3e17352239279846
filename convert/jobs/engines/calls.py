"""What an engine is asked to do. In: a `Worker` and a `Call`. Out: the result. Picklable."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from convert.inputs.input_stream import open_raw
from convert.inputs.tasks import Task
from convert.jobs.conversion_job import ConversionJob
from convert.jobs.part_receipts import PartReceipt
from convert.jobs.worker import Worker
from stream_pretrain.storage.hashing import blocks, hasher


@dataclass(frozen=True, kw_only=True)
class Call:
    """`convert` a task, find its `hashes` of ids, or the hash of a `source` file."""

    kind: Literal["convert", "hashes", "source"]
    task: Task | None = None
    done: Mapping[int, PartReceipt] = field(default_factory=dict)
    number: int = 0


class Counts(NamedTuple):
    """What a part added: input bytes, documents, tokens."""

    size: int
    documents: int
    tokens: int


class Engine(Protocol):
    """Runs calls, in any order."""

    def run(
        self, job: ConversionJob, calls: Sequence[Call], counts: Callable[..., None]
    ) -> Iterator[Any]:
        """Results as they are finished; `counts` is told of each part."""
        ...

    def close(self) -> None:
        """Let go of processes."""
        ...


def perform(worker: Worker, call: Call) -> Any:
    """The receipts of a task's new parts, id hashes, or (file number, xxh3-128)."""
    if call.kind == "source":
        return call.number, source_hash(worker.job, call.number)
    assert call.task is not None
    if call.kind == "hashes":
        return worker.smallest_hashes(call.task, call.number)
    return worker.convert(call.task, call.done)


def source_hash(job: ConversionJob, number: int) -> str:
    """xxh3-128 of an input file's stored bytes."""
    digest = hasher("xxh3_128")
    with open_raw(job.files[number], job.reading.storage) as opened:
        for block in blocks(opened):
            digest.update(block)
    return digest.hexdigest()
