"""Which engine a job gets. In: settings. Out: an `Engine`, its processes loading already.

Imports little, so that the fork server loads the libraries while this process does.
"""

from __future__ import annotations

import multiprocessing
import os
from typing import TYPE_CHECKING

from convert.config import BuildConfig

if TYPE_CHECKING:
    from convert.jobs.engines.calls import Engine

PRELOADED = ["convert.jobs.engines.forkserver_preload"]


def worker_count(config: BuildConfig) -> int:
    """Processes of the local engine; standard input can be read by one only, this one."""
    if "-" in config.input:
        return 1
    return config.workers or len(os.sched_getaffinity(0))


def warm_up(config: BuildConfig) -> None:
    """Start the fork server of the local engine."""
    if config.engine == "local" and worker_count(config) > 1:
        from multiprocessing import forkserver

        multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)
        forkserver.ensure_running()


def start_engine(config: BuildConfig) -> Engine:
    """The engine that the settings name."""
    warm_up(config)
    if config.engine == "ray":
        from convert.jobs.engines.ray_engine import RayEngine

        return RayEngine(config.ray_address)
    from convert.jobs.engines.local_engine import InlineEngine, LocalEngine

    workers = worker_count(config)
    return InlineEngine() if workers == 1 else LocalEngine(workers)
