"""An HTTP proxy that breaks what passes through it. In: an upstream port and rules. Out: faults and
a log of requests.

A rule matches requests by a part of their path and their method, and acts on the first `times` of
them. Runs in threads of the test's process.
"""

from __future__ import annotations

import http.client
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

Kind = Literal[
    "status",
    "drop",
    "reset",
    "truncate",
    "delay",
    "stall",
    "drip",
    "corrupt",
    "lose_answer",
    "short",
]
_BODY = (
    b"<?xml version='1.0'?><Error><Code>%s</Code><Message>Injected by the test</Message></Error>"
)


@dataclass(kw_only=True)
class Rule:
    """What happens to requests whose path contains `match`.

    `status` answers with that HTTP status; `drop` closes before an answer; `reset` and `truncate`
    break off after half the body; `delay` waits `seconds` first; `stall` sends half the body and
    then nothing; `drip` sends a byte every 50 ms; `corrupt` flips a bit; `short` gives half the
    body as if it were whole; `lose_answer` lets the request through and drops the answer.
    """

    kind: Kind
    match: str
    methods: tuple[str, ...] = ("GET", "HEAD", "PUT", "POST", "DELETE")
    times: int | None = None
    status: int = 500
    code: str = "InternalError"
    seconds: float = 0.0
    hits: int = 0

    def takes(self, method: str, path: str) -> bool:
        """Count and take this request, if it is one of ours."""
        fits = self.match in path and method in self.methods
        if not fits or (self.times is not None and self.hits >= self.times):
            return False
        self.hits += 1
        return True


@dataclass
class FaultProxy:
    """`endpoint` stands for the upstream server.

    `requests` is every request line that came, in order; `headers` its headers.
    """

    upstream_port: int
    rules: list[Rule] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    endpoint: str = ""

    def fail(self, kind: Kind, match: str = "", **options: Any) -> Rule:
        """Add a rule; the first one that fits a request acts on it."""
        rule = Rule(kind=kind, match=match, **options)
        with self.lock:
            self.rules.append(rule)
        return rule

    def heal(self) -> None:
        """Forget all rules."""
        with self.lock:
            self.rules.clear()

    def rule_for(self, method: str, path: str, headers: dict[str, str]) -> Rule | None:
        """Log a request and find what happens to it."""
        with self.lock:
            self.requests.append(f"{method} {path}")
            self.headers.append(headers)
            return next((rule for rule in self.rules if rule.takes(method, path)), None)

    def count(self, match: str, method: str = "GET") -> int:
        """Requests so far whose line contains `match`."""
        with self.lock:
            return sum(line.startswith(method) and match in line for line in self.requests)


@contextmanager
def fault_proxy_running(upstream_port: int) -> Iterator[FaultProxy]:
    """Start a proxy on a free port and stop it at the end."""
    proxy = FaultProxy(upstream_port)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"proxy": proxy}))
    server.daemon_threads = True
    server.block_on_close = False
    proxy.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
    )
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: FaultProxy

    def handle(self) -> None:
        """Serve one connection; a peer that is gone is not an error."""
        try:
            super().handle()
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    def answer(self) -> None:
        """One request."""
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        rule = self.proxy.rule_for(
            self.command, self.path, {k.lower(): v for k, v in self.headers.items()}
        )
        kind = rule.kind if rule else None
        if rule is not None and kind == "delay":
            time.sleep(rule.seconds)
            kind = None
        if kind == "drop":
            return self._break()
        if rule is not None and kind == "status":
            return self._error(rule)
        status, headers, answer = self._forward(body)
        if kind == "lose_answer":
            return self._break()
        if kind is None or self.command == "HEAD":
            return self._send(status, headers, answer)
        return self._damage(kind, status, headers, answer)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        upstream = http.client.HTTPConnection("127.0.0.1", self.proxy.upstream_port, timeout=60)
        try:
            headers = {k: v for k, v in self.headers.items() if k.lower() != "connection"}
            upstream.request(self.command, self.path, body=body or None, headers=headers)
            answer = upstream.getresponse()
            kept = [
                (k, v)
                for k, v in answer.getheaders()
                if k.lower()
                not in ("connection", "transfer-encoding", "content-length", "keep-alive")
            ]
            content = answer.read()
            length = (
                answer.getheader("content-length") if self.command == "HEAD" else str(len(content))
            )
            return answer.status, [*kept, ("Content-Length", length or "0")], content
        finally:
            upstream.close()

    def _send(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _damage(self, kind: Kind, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        half = body[: len(body) // 2]
        if kind == "short":
            whole = [(k, v) for k, v in headers if k != "Content-Length"]
            return self._send(status, [*whole, ("Content-Length", str(len(half)))], half)
        if kind == "corrupt":
            middle = len(body) // 2
            return self._send(
                status, headers, half + bytes([body[middle] ^ 1]) + body[middle + 1 :]
            )
        self._send(status, headers, half)
        self.wfile.flush()
        if kind == "stall":
            time.sleep(3600)
        elif kind == "drip":
            for byte in body[len(half) :]:
                self.wfile.write(bytes([byte]))
                self.wfile.flush()
                time.sleep(0.05)
        return self._break(reset=kind == "reset")

    def _error(self, rule: Rule) -> None:
        body = b"" if self.command == "HEAD" else _BODY % rule.code.encode()
        self._send(rule.status, [("Content-Length", str(len(body)))], body)

    def _break(self, *, reset: bool = False) -> None:
        if reset:
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR) if not reset else self.connection.close()
