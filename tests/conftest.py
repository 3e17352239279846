"""Fixtures for all tests."""

from servers.fixtures import bucket, fault_proxy, s3, s3_server  # noqa: F401
