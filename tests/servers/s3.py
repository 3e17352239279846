"""Moto's S3 server as a process of its own. In: nothing. Out: an endpoint and empty buckets.

Keeps all in memory.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from servers.ports import free_port, wait_until_open

KEYS = {
    "AWS_ACCESS_KEY_ID": "AKIATESTONLY00000000",
    "AWS_SECRET_ACCESS_KEY": "test-only-secret-0000",
}


@dataclass(frozen=True, kw_only=True)
class S3Server:
    """A running server. `make_bucket` gives the name of a new, empty bucket."""

    endpoint: str
    port: int
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def make_bucket(self) -> str:
        """Create a bucket that nobody else uses."""
        name = f"bucket-{os.getpid()}-{next(self._numbers)}"
        request = urllib.request.Request(f"{self.endpoint}/{name}", method="PUT")
        urllib.request.urlopen(request, timeout=10).close()
        return name


@contextmanager
def s3_server_running() -> Iterator[S3Server]:
    """Start the server on a free port and stop it at the end."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **KEYS},
    )
    try:
        wait_until_open(port)
        yield S3Server(endpoint=f"http://127.0.0.1:{port}", port=port)
    finally:
        process.kill()
        process.wait()
