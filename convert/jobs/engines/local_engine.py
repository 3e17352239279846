"""Tasks on processes of this machine. In: a job, calls. Out: their results as they are finished.

Workers come from a fork server that has imported everything, so that each costs a fork and none
inherits a bucket client's threads. A worker ends when its parent does, however that ends.
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
from convert.jobs.engines.calls import Call, Counts, perform
from convert.jobs.worker import Worker
from stream_pretrain.errors import StreamPretrainError
from stream_pretrain.system.parent_death import die_with_parent

_worker: Worker | None = None


class InlineEngine:
    """All tasks in this process, one after another."""

    def run(
        self, job: ConversionJob, calls: Sequence[Call], counts: Callable[..., None]
    ) -> Iterator[Any]:
        """Results in order; `counts` is called after each part."""
        worker = Worker(job, counts)
        for call in calls:
            yield perform(worker, call)

    def close(self) -> None:
        """Nothing to end."""


class LocalEngine:
    """A pool of processes."""

    def __init__(self, workers: int) -> None:
        """Workers start with the first task."""
        self._workers = workers
        self._context = multiprocessing.get_context("forkserver")

    def run(
        self, job: ConversionJob, calls: Sequence[Call], counts: Callable[..., None]
    ) -> Iterator[Any]:
        """Results as they come; the first error ends all. A single task needs no other process."""
        if sum(call.kind != "source" for call in calls) < 2:
            yield from InlineEngine().run(job, calls, counts)
            return
        reports = self._context.SimpleQueue()
        reader = threading.Thread(target=_forward, args=(reports, counts), daemon=True)
        reader.start()
        pool = ProcessPoolExecutor(
            min(self._workers, max(1, len(calls))),
            mp_context=self._context,
            initializer=_start_worker,
            initargs=(job, reports),
        )
        futures = [pool.submit(_perform, call) for call in calls]
        try:
            yield from _results(futures)
        except BaseException:
            _end_workers(pool)
            raise
        pool.shutdown()
        reports.put(None)
        reader.join()
        reports.close()

    def close(self) -> None:
        """Nothing to end: the fork server leaves with this process."""


def _end_workers(pool: ProcessPoolExecutor) -> None:
    """End tasks in the middle, which their files survive: a task may be a file of 100 GB.

    The queue of reports is left alone: a worker may have died with its lock.
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


def _forward(reports: Any, counts: Callable[..., None]) -> None:
    while (report := reports.get()) is not None:
        counts(*report)


def _start_worker(job: ConversionJob, reports: Any) -> None:
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with_parent()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"

    def report(*counts: int) -> None:
        reports.put(Counts(*counts))

    _worker = Worker(job, report)


def _perform(call: Call) -> Any:
    assert _worker is not None
    return perform(_worker, call)


def end_with_parent() -> None:
    """The kernel ends this process with the fork server, which ends with the main process once no
    worker holds its pipe; elsewhere a thread sees to it, when a library lets go of the interpreter.
    """
    server: Any = forkserver._forkserver
    alive, server._forkserver_alive_fd = server._forkserver_alive_fd, None
    if alive is not None:
        os.close(alive)
    die_with_parent()
    threading.Thread(target=_leave_with_parent, daemon=True).start()


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
