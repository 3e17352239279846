"""Start the engine that the settings name.

This module imports little, so that the fork server loads the libraries while this process does.
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
    """Return the number of processes of the local engine; standard input needs exactly one."""
    if "-" in config.input:
        return 1
    return config.workers or len(os.sched_getaffinity(0))


def start_fork_server(config: BuildConfig) -> None:
    """Start the fork server of the local engine, unless one process does all the work."""
    if config.engine == "local" and worker_count(config) > 1:
        from multiprocessing import forkserver

        multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)
        forkserver.ensure_running()


def start_engine(config: BuildConfig) -> Engine:
    """Return the engine that the settings name."""
    start_fork_server(config)
    if config.engine == "ray":
        from convert.jobs.engines.ray_engine import RayEngine

        return RayEngine(config.ray_address)
    from convert.jobs.engines.local_engine import InlineEngine, LocalEngine

    workers = worker_count(config)
    return InlineEngine() if workers == 1 else LocalEngine(workers)
