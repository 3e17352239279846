"""Tasks on a Ray cluster. In: a job, calls. Out: their results as they are finished.

Each call is one Ray task; scheduling, retries and placement are Ray's. Inputs and output must be
reachable from every node: buckets, or one shared file system.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from convert.jobs.conversion_job import ConversionJob
from convert.jobs.engines.calls import Call, perform
from convert.jobs.part_receipts import PartReceipt
from convert.jobs.worker import Worker
from stream_pretrain.errors import ConfigError, StreamPretrainError

CALLS_IN_FLIGHT = 1000
_workers: dict[str, Worker] = {}


class RayEngine:
    """An existing cluster where there is one, else one on this machine."""

    def __init__(self, address: str | None) -> None:
        """Connect."""
        try:
            import ray
        except ImportError as error:
            raise ConfigError(
                "--engine ray: Ray is not installed. Run: pip install 'stream-pretrain[ray]'"
            ) from error
        self._ray = ray
        self._is_ours = not ray.is_initialized()
        if self._is_ours:
            try:
                ray.init(address=address, log_to_driver=False, configure_logging=False)
            except (ConnectionError, ValueError) as error:
                raise ConfigError(
                    f"--ray_address {address}: no cluster there ({error}). Start one, or leave the "
                    "flag out."
                ) from error

    def run(
        self, job: ConversionJob, calls: Sequence[Call], counts: Callable[..., None]
    ) -> Iterator[Any]:
        """Results as they come; the first error ends all."""
        ray = self._ray
        remote = ray.remote(_perform)
        shared = ray.put(job)
        key = f"{id(self)}-{id(job)}"
        waiting = list(calls)[::-1]
        running: dict[Any, Call] = {}
        try:
            while waiting or running:
                while waiting and len(running) < CALLS_IN_FLIGHT:
                    call = waiting.pop()
                    running[remote.remote(key, shared, call)] = call
                done, _ = ray.wait(list(running), num_returns=1)
                call = running.pop(done[0])
                result = self._result(done[0])
                if call.kind == "convert":
                    _count(call, result, counts)
                yield result
        finally:
            for reference in running:
                ray.cancel(reference, force=False)

    def _result(self, reference: Any) -> Any:
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, StreamPretrainError):
                raise error.cause from None
            raise

    def close(self) -> None:
        """Leave the cluster, or end our own."""
        if self._is_ours:
            self._ray.shutdown()


def _perform(key: str, job: ConversionJob, call: Call) -> Any:
    """Runs in a Ray worker, which keeps the loaded tokenizer from call to call."""
    if key not in _workers:
        _workers.clear()
        _workers[key] = Worker(job)
    return perform(_workers[key], call)


def _count(call: Call, receipts: Sequence[PartReceipt], counts: Callable[..., None]) -> None:
    assert call.task is not None
    splits = [split for receipt in receipts for split in receipt.splits.values()]
    documents = sum(split.documents for split in splits)
    counts(call.task.size, documents, sum(split.tokens for split in splits))
