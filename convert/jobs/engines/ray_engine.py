"""Run calls on a Ray cluster.

Each call is one Ray task; scheduling, retries and placement are Ray's. Inputs and output have to be
reachable from every node: buckets, or one shared file system.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from convert.jobs.conversion_job import ConversionJob
from convert.jobs.engines.calls import Call, run_call
from convert.jobs.part_receipts import PartReceipt
from convert.jobs.worker import Worker
from stream_pretrain.errors import ConfigError, StreamPretrainError

CALLS_IN_FLIGHT = 1000
_workers: dict[str, Worker] = {}


class RayEngine:
    """Runs calls on an existing cluster, or starts one on this machine."""

    def __init__(self, address: str | None) -> None:
        """Connect to the cluster."""
        try:
            import ray
        except ImportError as error:
            raise ConfigError(
                "--engine ray: Ray is not installed. Run: pip install 'stream-pretrain[ray]'"
            ) from error
        self._ray = ray
        self._owns_cluster = not ray.is_initialized()
        if self._owns_cluster:
            try:
                ray.init(address=address, log_to_driver=False, configure_logging=False)
            except (ConnectionError, ValueError) as error:
                raise ConfigError(
                    f"--ray_address {address}: no cluster there ({error}). Start one, or leave the "
                    "flag out."
                ) from error

    def run(
        self, job: ConversionJob, calls: Sequence[Call], on_progress: Callable[..., None]
    ) -> Iterator[Any]:
        """Yield results as they finish; the first error ends all calls."""
        ray = self._ray
        remote = ray.remote(_run_call)
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
                    _report_progress(call, result, on_progress)
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
        """Disconnect from the cluster, or shut down our own."""
        if self._owns_cluster:
            self._ray.shutdown()


def _run_call(key: str, job: ConversionJob, call: Call) -> Any:
    """Run a call in a Ray worker, which keeps the loaded tokenizer from call to call."""
    if key not in _workers:
        _workers.clear()
        _workers[key] = Worker(job)
    return run_call(_workers[key], call)


def _report_progress(
    call: Call, receipts: Sequence[PartReceipt], on_progress: Callable[..., None]
) -> None:
    assert call.task is not None
    splits = [split for receipt in receipts for split in receipt.splits.values()]
    documents = sum(split.documents for split in splits)
    on_progress(call.task.size, documents, sum(split.tokens for split in splits))
