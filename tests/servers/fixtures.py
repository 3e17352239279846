"""Servers as pytest fixtures. In: `from servers.fixtures import ...` in a conftest. Out: endpoints,
buckets, proxies.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from servers.fault_proxy import FaultProxy, fault_proxy_running
from servers.s3 import KEYS, S3Server, s3_server_running

_FOREIGN = (
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_PROFILE",
    "AWS_REGION",
    "AWS_SESSION_TOKEN",
    "AWS_SKIP_SIGNATURE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """One S3 server for the session."""
    with s3_server_running() as server:
        yield server


@pytest.fixture
def s3(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The server, with the environment of a user of it: keys, region and `S3_ENDPOINT_URL`."""
    for name in _FOREIGN:
        monkeypatch.delenv(name, raising=False)
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("S3_ENDPOINT_URL", s3_server.endpoint)
    return s3_server


@pytest.fixture
def bucket(s3: S3Server) -> str:
    """`s3://…` of a new, empty bucket."""
    return f"s3://{s3.make_bucket()}"


@pytest.fixture
def fault_proxy(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """A proxy before the server; `S3_ENDPOINT_URL` leads through it."""
    with fault_proxy_running(s3.port) as proxy:
        monkeypatch.setenv("S3_ENDPOINT_URL", proxy.endpoint)
        yield proxy
