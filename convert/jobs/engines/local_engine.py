"""Run calls on processes of this machine.

Workers come from a fork server that has imported everything, so that each costs one fork and none
inherits the threads of a bucket client. A worker ends when its parent does, however that ends.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection, forkserver
from typing import Any

from convert.jobs.conversion_job import ConversionJob
from convert.jobs.engines.calls import Call, PartCounts, run_call
from convert.jobs.worker import Worker
from stream_pretrain.errors import StreamPretrainError
from stream_pretrain.system.parent_death import die_with_parent

_worker: Worker | None = None


class InlineEngine:
    """Runs all calls in this process, one after another."""

    def run(
        self, job: ConversionJob, calls: Sequence[Call], on_progress: Callable[..., None]
    ) -> Iterator[Any]:
        """Yield results in order; `on_progress` is called after each part."""
        worker = Worker(job, on_progress)
        for call in calls:
            yield run_call(worker, call)

    def close(self) -> None:
        """Do nothing: no process was started."""


class LocalEngine:
    """Runs calls on a pool of processes."""

    def __init__(self, workers: int) -> None:
        """Prepare the pool; workers start with the first task."""
        self._workers = workers
        self._context = multiprocessing.get_context("forkserver")

    def run(
        self, job: ConversionJob, calls: Sequence[Call], on_progress: Callable[..., None]
    ) -> Iterator[Any]:
        """Yield results as they finish; the first error ends all calls.

        A single task needs no other process.
        """
        if sum(call.kind != "source" for call in calls) < 2:
            yield from InlineEngine().run(job, calls, on_progress)
            return
        reports = self._context.SimpleQueue()
        reader = threading.Thread(target=_forward_reports, args=(reports, on_progress), daemon=True)
        reader.start()
        pool = ProcessPoolExecutor(
            min(self._workers, max(1, len(calls))),
            mp_context=self._context,
            initializer=_start_worker,
            initargs=(job, reports),
        )
        futures = [pool.submit(_run_call, call) for call in calls]
        try:
            yield from _results(futures)
        except BaseException:
            _terminate_workers(pool)
            raise
        pool.shutdown()
        reports.put(None)
        reader.join()
        reports.close()

    def close(self) -> None:
        """Do nothing: the fork server ends with this process."""


def _terminate_workers(pool: ProcessPoolExecutor) -> None:
    """Terminate the workers without waiting for their tasks: one may be a file of 100 GB.

    An interrupted task does no harm to the files. The queue of reports is not touched: a worker may
    have died with its lock.
    """
    for child in multiprocessing.active_children():
        child.terminate()
    pool.shutdown(cancel_futures=True)


def _results(futures: Sequence[Future[Any]]) -> Iterator[Any]:
    try:
        for future in as_completed(futures):
            yield future.result()
    except BrokenProcessPool as error:
        raise StreamPretrainError(
            "a worker process died (out of memory, or killed). What was finished is kept: run the "
            "same command again, with fewer --workers or a smaller --part_size if memory was short."
        ) from error


def _forward_reports(reports: Any, on_progress: Callable[..., None]) -> None:
    while (report := reports.get()) is not None:
        on_progress(*report)


def _start_worker(job: ConversionJob, reports: Any) -> None:
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with_parent()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"

    def report(*counts: int) -> None:
        reports.put(PartCounts(*counts))

    _worker = Worker(job, report)


def _run_call(call: Call) -> Any:
    assert _worker is not None
    return run_call(_worker, call)


def end_with_parent() -> None:
    """Let this process end when its parent does.

    The kernel ends it with the fork server, which ends with the main process once no worker holds
    its pipe open. Where the kernel has no such signal, a thread ends the process as soon as a
    library releases the interpreter.
    """
    server: Any = forkserver._forkserver
    alive, server._forkserver_alive_fd = server._forkserver_alive_fd, None
    if alive is not None:
        os.close(alive)
    die_with_parent()
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
