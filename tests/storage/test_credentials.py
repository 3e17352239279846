"""Credentials, endpoints and regions of buckets, and the errors where they are missing."""

from __future__ import annotations

import builtins
import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from servers.azure import ACCOUNT, KEY, AzureServer, azure_server_running, azurite_program
from servers.fault_proxy import FaultProxy
from servers.s3 import KEYS, S3Server

from stream_pretrain.config.sections import StorageConfig
from stream_pretrain.errors import StorageError
from stream_pretrain.storage.clients import endpoint_of
from stream_pretrain.storage.location import parse_location
from stream_pretrain.storage.store import open_store


def fast(**settings: Any) -> StorageConfig:
    return StorageConfig(**{"timeout": 2.0, "retries": 1, **settings})


@pytest.fixture
def nobody(s3: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> S3Server:
    """A user without keys, profiles or an instance role."""
    for name in KEYS:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    return s3


def public_object(server: S3Server) -> str:
    """A bucket and an object that anybody may read."""
    bucket = server.make_bucket()
    open_store(f"s3://{bucket}", fast()).write("data/key", b"value")
    for path in (bucket, f"{bucket}/data/key"):
        request = urllib.request.Request(f"{server.endpoint}/{path}?acl", method="PUT")
        request.add_header("x-amz-acl", "public-read")
        request.add_header("Authorization", "AWS4-HMAC-SHA256 Credential=x/20200101/us-east-1/s3/x")
        urllib.request.urlopen(request, timeout=10).close()
    return bucket


def test_an_anonymous_public_bucket_can_be_read(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = public_object(s3)
    for name in KEYS:
        monkeypatch.delenv(name)
    store = open_store(f"s3://{bucket}/data", fast(anonymous=True))
    assert store.read("key") == b"value"
    assert [info.key for info in store.list()] == ["key"]


def test_without_credentials_the_error_says_what_to_set(nobody: S3Server) -> None:
    bucket = nobody.make_bucket()
    with pytest.raises(StorageError) as failure:
        open_store(f"s3://{bucket}", fast()).list()
    assert failure.value.reason == "denied"
    for word in ("AWS_ACCESS_KEY_ID", "storage.profile", "storage.anonymous"):
        assert word in str(failure.value)


def test_a_profile_gives_keys_and_region(
    nobody: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = nobody.make_bucket()
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    key, secret = KEYS.values()
    (tmp_path / "credentials").write_text(
        f"[team]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n"
    )
    (tmp_path / "config").write_text("[profile team]\nregion = eu-central-1\n")
    store = open_store(f"s3://{bucket}", fast(profile="team"))
    store.write("key", b"value")
    assert store.read("key") == b"value"


def test_a_profile_that_is_not_there_is_named(nobody: S3Server) -> None:
    with pytest.raises(StorageError, match=r"nowhere.*\(storage\.profile\)") as failure:
        open_store(f"s3://{nobody.make_bucket()}", fast(profile="nowhere")).list()
    assert failure.value.reason == "denied"


def test_a_profile_without_boto3_says_how_to_install_it(
    nobody: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    import_module = builtins.__import__

    def without_boto3(name: str, *args: Any, **options: Any) -> Any:
        if name.startswith("boto"):
            raise ImportError(name)
        return import_module(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without_boto3)
    with pytest.raises(StorageError, match=r"profile 'team' need boto3.*stream-pretrain\[aws\]"):
        open_store(f"s3://{nobody.port}", fast(profile="team")).list()


def test_the_usual_variables_name_the_endpoint_and_the_section_wins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    location = parse_location("s3://b/x")
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "S3_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    assert endpoint_of(location, fast()) is None
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "S3_ENDPOINT_URL"):
        monkeypatch.setenv(name, f"https://{name}.example")
        assert endpoint_of(location, fast()) == f"https://{name}.example"
    config = fast(endpoint_url="https://mine.example")
    assert endpoint_of(location, config) == "https://mine.example"
    assert endpoint_of(parse_location("gs://b/x"), fast()) is None


def test_requester_pays_is_said_with_each_request(bucket: str, fault_proxy: FaultProxy) -> None:
    store = open_store(bucket, fast(requester_pays=True))
    store.write("key", b"value")
    assert store.read("key") == b"value"
    assert all(headers.get("x-amz-request-payer") == "requester" for headers in fault_proxy.headers)
    assert len(fault_proxy.headers) == 2


def test_wrong_keys_are_denied_without_being_shown(bucket: str, fault_proxy: FaultProxy) -> None:
    fault_proxy.fail("status", "", status=403, code="SignatureDoesNotMatch")
    with pytest.raises(StorageError) as failure:
        open_store(bucket, fast()).write("key", b"value")
    assert failure.value.reason == "denied"
    assert "SignatureDoesNotMatch" in str(failure.value)
    for secret in KEYS.values():
        assert secret not in str(failure.value)


def test_a_setting_that_the_client_refuses_is_an_error_with_the_location(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", "{not json")
    with pytest.raises(StorageError, match="gs://b/x: cannot make a client") as failure:
        open_store("gs://b/x", fast()).read("key")
    assert "not json" not in str(failure.value)


def test_google_errors_are_told_like_the_others(s3: S3Server, fault_proxy: FaultProxy) -> None:
    """No emulator of GCS speaks to this client: its settings and its errors are what is tested."""
    del s3
    store = open_store("gs://b/x", fast(endpoint_url=fault_proxy.endpoint, anonymous=True))
    for status, reason in ((403, "denied"), (404, "absent"), (500, "unreachable")):
        fault_proxy.heal()
        fault_proxy.fail("status", "", status=status, code="Whatever")
        with pytest.raises(StorageError, match=f"gs://b/x/key: read: HTTP {status}") as failure:
            store.read("key")
        assert failure.value.reason == reason
    assert all("/b/x" in line for line in fault_proxy.requests)


def test_google_conditions_go_by_generation(
    fault_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "token-of-the-test")
    store = open_store("gs://b/x", fast(endpoint_url=fault_proxy.endpoint))
    fault_proxy.fail("status", "", status=412, code="PreconditionFailed")
    for condition, sent in (({"if_match": "1234"}, "1234"), ({"create_only": True}, "0")):
        fault_proxy.headers.clear()
        with pytest.raises(StorageError) as failure:
            store.write("lease", b"mine", **condition)  # type: ignore[arg-type]
        assert failure.value.reason == "conflict"
        assert fault_proxy.headers[0]["x-goog-if-generation-match"] == sent
        assert "token-of-the-test" not in str(failure.value)


def test_google_without_credentials_says_so(
    fault_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(tmp_path / "none.json"))
    with pytest.raises(StorageError, match="gs://b/x: cannot make a client"):
        open_store("gs://b/x", fast(endpoint_url=fault_proxy.endpoint)).write("key", b"value")


@pytest.fixture(scope="module")
def azure() -> Iterator[AzureServer]:
    program = azurite_program()
    if program is None:
        pytest.skip("azurite is not installed (npm install azurite)")
    with azure_server_running(program) as server:
        yield server


def test_azure_speaks_through_the_same_door(
    azure: AzureServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
    container = azure.make_container(f"c{os.getpid()}")
    store = open_store(f"az://{container}/data", fast(endpoint_url=azure.endpoint))
    first = store.write("lease", b"1", create_only=True)
    with pytest.raises(StorageError) as failure:
        store.write("lease", b"2", create_only=True)
    assert failure.value.reason == "conflict"
    store.write("lease", b"3", if_match=first)
    with pytest.raises(StorageError) as failure:
        store.write("lease", b"4", if_match=first)
    assert failure.value.reason == "conflict"
    data = os.urandom(20 << 20)
    (tmp_path / "big").write_bytes(data)
    assert store.upload(tmp_path / "big", "deep/big").size == len(data)
    assert store.download("deep/big", tmp_path / "back", size=len(data)) == len(data)
    assert (tmp_path / "back").read_bytes() == data
    with store.open_stream("deep/big") as stream:
        assert stream.read() == data
    assert [info.key for info in store.list()] == ["deep/big", "lease"]
    assert store.list_dirs() == ["deep"]
    store.delete("never/existed")
    assert store.delete_prefix("") == 2
    with pytest.raises(StorageError) as failure:
        store.read("lease")
    assert failure.value.reason == "absent"
    assert KEY not in str(failure.value)
