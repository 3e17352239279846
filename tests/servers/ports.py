"""A free TCP port. In: nothing. Out: its number; another program may take it before it is used."""

from __future__ import annotations

import socket
import time


def free_port() -> int:
    """A port of 127.0.0.1 on which nobody listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until_open(port: int, seconds: float = 60.0) -> None:
    """Return when something listens on the port; TimeoutError when nothing does in time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with socket.socket() as probe:
            probe.settimeout(1.0)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise TimeoutError(f"nothing listens on port {port} after {seconds} s")
