"""Define the calls that an engine runs, and run one on a `Worker`.

Calls and results are picklable, so that they go to other processes and machines.
"""

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
    """`convert` a task, find the smallest `hashes` of its ids, or hash a `source` file."""

    kind: Literal["convert", "hashes", "source"]
    task: Task | None = None
    done: Mapping[int, PartReceipt] = field(default_factory=dict)
    number: int = 0


class PartCounts(NamedTuple):
    """The progress that one part made: input bytes, documents, tokens."""

    size: int
    documents: int
    tokens: int


class Engine(Protocol):
    """Runs calls, in any order."""

    def run(
        self, job: ConversionJob, calls: Sequence[Call], on_progress: Callable[..., None]
    ) -> Iterator[Any]:
        """Yield results as they finish; `on_progress` is called with the counts of each part."""
        ...

    def close(self) -> None:
        """Release the processes."""
        ...


def run_call(worker: Worker, call: Call) -> Any:
    """Return the receipts of a task's new parts, id hashes, or (file number, xxh3-128)."""
    if call.kind == "source":
        return call.number, hash_source(worker.job, call.number)
    assert call.task is not None
    if call.kind == "hashes":
        return worker.smallest_hashes(call.task, call.number)
    return worker.convert(call.task, call.done)


def hash_source(job: ConversionJob, number: int) -> str:
    """Return the xxh3-128 of an input file's stored bytes."""
    digest = hasher("xxh3_128")
    with open_raw(job.files[number], job.read_options.storage) as stream:
        for block in blocks(stream):
            digest.update(block)
    return digest.hexdigest()
