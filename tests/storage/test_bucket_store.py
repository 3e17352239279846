"""Buckets over HTTP: what is written is what is read, also through faults."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
from servers.fault_proxy import FaultProxy
from servers.s3 import KEYS, S3Server

from stream_pretrain.config.sections import StorageConfig
from stream_pretrain.errors import StorageError
from stream_pretrain.storage import retry
from stream_pretrain.storage.bucket import BucketStore
from stream_pretrain.storage.store import Store, open_store


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the growth of waits, but not their length."""
    monkeypatch.setattr(retry.RetryPolicy, "wait_after", lambda _self, attempt: 0.005 * attempt)


def fast(**settings: object) -> StorageConfig:
    return StorageConfig(**{"timeout": 2.0, "retries": 3, **settings})  # type: ignore[arg-type]


@pytest.fixture
def store(bucket: str) -> Store:
    return open_store(f"{bucket}/some/where", fast())


def test_objects_come_back_as_written(store: Store) -> None:
    etag = store.write("a/b.txt", b"hello")
    info = store.head("a/b.txt")
    assert info is not None
    assert (info.key, info.size, info.etag) == ("a/b.txt", 5, etag)
    assert info.modified > 1_600_000_000
    assert store.read("a/b.txt") == b"hello"
    assert store.read_range("a/b.txt", 1, 3) == b"ell"
    assert store.head("a") is None


def test_lists_are_recursive_sorted_and_relative(store: Store) -> None:
    for key in ("z.txt", "a/two", "a/one", "ab/three"):
        store.write(key, b"x")
    assert [info.key for info in store.list()] == ["a/one", "a/two", "ab/three", "z.txt"]
    assert [info.key for info in store.list("a")] == ["a/one", "a/two"]
    assert store.list_dirs() == ["a", "ab"]
    assert [info.key for info in store.child("a").list()] == ["one", "two"]
    assert store.list("nothing") == []


def test_create_only_and_if_match_refuse_what_another_wrote(store: Store) -> None:
    first = store.write("lease", b"1", create_only=True)
    with pytest.raises(StorageError, match=r"some/where/lease: write: HTTP 412") as failure:
        store.write("lease", b"2", create_only=True)
    assert failure.value.reason == "conflict"
    store.write("lease", b"3", if_match=first)
    with pytest.raises(StorageError) as failure:
        store.write("lease", b"4", if_match=first)
    assert failure.value.reason == "conflict"
    assert store.read("lease") == b"3"


def test_a_lost_answer_to_our_own_create_is_no_conflict(
    bucket: str, fault_proxy: FaultProxy
) -> None:
    store = open_store(bucket, fast())
    fault_proxy.fail("lose_answer", "lease", methods=("PUT",), times=1)
    assert store.write("lease", b"mine", create_only=True)
    assert store.read("lease") == b"mine"


def test_large_files_go_up_in_parts_and_are_checked(store: Store, tmp_path: Path) -> None:
    data = os.urandom(20 << 20)
    (tmp_path / "big").write_bytes(data)
    info = store.upload(tmp_path / "big", "big")
    assert (info.size, info.etag.strip('"')[-2:]) == (len(data), "-3")
    assert store.download("big", tmp_path / "there" / "big", size=len(data)) == len(data)
    assert (tmp_path / "there" / "big").read_bytes() == data


def test_an_upload_that_another_process_overwrites_is_noticed(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import obstore

    put = obstore.put

    def put_and_be_overwritten(
        client: object, key: str, *args: object, **options: object
    ) -> object:
        result = put(client, key, *args, **options)  # type: ignore[arg-type]
        put(client, key, b"another's", use_multipart=False)  # type: ignore[arg-type]
        return result

    monkeypatch.setattr(obstore, "put", put_and_be_overwritten)
    (tmp_path / "mine").write_bytes(b"mine")
    with pytest.raises(StorageError, match=r"holds 9 bytes .* after an upload of 4") as failure:
        store.upload(tmp_path / "mine", "object")
    assert failure.value.reason == "damaged"


def test_a_deleted_prefix_is_gone_and_its_neighbour_is_not(store: Store) -> None:
    for number in range(5):
        store.write(f"old/{number}", b"x")
    store.write("older/1", b"x")
    assert store.delete_prefix("old") == 5
    assert [info.key for info in store.list()] == ["older/1"]
    store.delete("never/existed")


def test_a_stream_reads_on_where_a_broken_connection_left_off(
    bucket: str, fault_proxy: FaultProxy
) -> None:
    data = os.urandom(3_000_000)
    store = open_store(bucket, fast())
    store.write("big", data)
    fault_proxy.fail("reset", "big", methods=("GET",), times=1)
    fault_proxy.fail("truncate", "big", methods=("GET",), times=1)
    fault_proxy.fail("short", "big", methods=("GET",), times=1)
    with store.open_stream("big") as stream:
        assert stream.read(10) == data[:10]
        assert stream.read() == data[10:]
    assert fault_proxy.count("/big") == 4


def test_a_stream_of_an_object_that_is_replaced_is_an_error_and_no_mixture(
    bucket: str, fault_proxy: FaultProxy
) -> None:
    store = open_store(bucket, fast())
    store.write("big", bytes(3_000_000))
    fault_proxy.fail("reset", "big", methods=("GET",), times=1)
    with store.open_stream("big") as stream:
        assert stream.read(10) == bytes(10)
        store.write("big", b"1" * 3_000_000)
        with pytest.raises(StorageError, match="HTTP 412") as failure:
            stream.read()
    assert failure.value.reason == "conflict"


def test_a_stream_that_stays_too_short_is_an_error(bucket: str, fault_proxy: FaultProxy) -> None:
    store = open_store(bucket, fast())
    store.write("big", b"1")
    with store.open_stream("big") as stream:
        fault_proxy.fail("short", "big", methods=("GET",))
        with pytest.raises(StorageError, match="ended after 0 of 1 bytes"):
            stream.read()


def test_a_stream_of_nothing_is_an_error(store: Store) -> None:
    with pytest.raises(StorageError, match="none: not found") as failure:
        store.open_stream("none")
    assert failure.value.reason == "absent"


HEALING = ["drop", "reset", "truncate", "short", "corrupt"]


@pytest.mark.parametrize("kind", HEALING)
def test_a_download_survives_faults_that_pass(
    kind: str, bucket: str, fault_proxy: FaultProxy, tmp_path: Path
) -> None:
    store = open_store(bucket, fast())
    data = os.urandom(100_000)
    store.write("shard", data)
    fault_proxy.fail(kind, "shard", methods=("GET",), times=1)  # type: ignore[arg-type]
    seen: list[retry.Retry] = []
    from stream_pretrain.storage.hashing import xxh64_of

    hashes = {"xxh64": xxh64_of(data)}
    store.download("shard", tmp_path / "shard", size=len(data), hashes=hashes, on_retry=seen.append)
    assert (tmp_path / "shard").read_bytes() == data
    assert [event.attempt for event in seen] == [1]
    assert [path.name for path in tmp_path.iterdir()] == ["shard"]


FATAL = [
    ("status", {"status": 500}, "unreachable", "HTTP 500, InternalError", 3),
    ("status", {"status": 503, "code": "SlowDown"}, "unreachable", "HTTP 503, SlowDown", 3),
    ("status", {"status": 400, "code": "BadRequest"}, "other", "HTTP 400, BadRequest", 1),
    ("status", {"status": 400, "code": "ExpiredToken"}, "denied", "HTTP 400, ExpiredToken", 1),
    ("status", {"status": 400, "code": "RequestTimeout"}, "timeout", "RequestTimeout", 3),
    ("status", {"status": 403, "code": "AccessDenied"}, "denied", "HTTP 403, AccessDenied", 1),
    ("status", {"status": 401, "code": "Unauthorized"}, "denied", "HTTP 401", 1),
    ("status", {"status": 404, "code": "NoSuchKey"}, "absent", "HTTP 404, NoSuchKey", 1),
    ("drop", {}, "unreachable", "the connection broke", 3),
    ("reset", {}, "unreachable", "connection was reset", 3),
    ("truncate", {}, "unreachable", "before the whole body", 3),
    ("stall", {}, "timeout", "no data arrived in time", 3),
    ("short", {}, "damaged", "50,000 bytes arrived, expected 100,000", 2),
    ("corrupt", {}, "damaged", "xxh64 is", 2),
]


@pytest.mark.parametrize(("kind", "options", "reason", "words", "attempts"), FATAL)
def test_a_download_fails_promptly_and_says_why(
    kind: str,
    options: dict[str, object],
    reason: str,
    words: str,
    attempts: int,
    bucket: str,
    fault_proxy: FaultProxy,
    tmp_path: Path,
) -> None:
    store = open_store(bucket, fast(timeout=0.5))
    data = bytes(100_000)
    store.write("shard", data)
    fault_proxy.fail(kind, "shard", methods=("GET",), **options)  # type: ignore[arg-type]
    from stream_pretrain.storage.hashing import xxh64_of

    with pytest.raises(StorageError) as failure:
        store.download(
            "shard", tmp_path / "shard", size=len(data), hashes={"xxh64": xxh64_of(data)}
        )
    assert failure.value.reason == reason
    assert words in str(failure.value)
    assert f"{bucket}/shard" in str(failure.value)
    assert fault_proxy.count("/shard") == attempts
    assert list(tmp_path.iterdir()) == []
    assert KEYS["AWS_SECRET_ACCESS_KEY"] not in str(failure.value)


def test_a_slow_drip_ends_at_the_deadline(
    bucket: str, fault_proxy: FaultProxy, tmp_path: Path
) -> None:
    store = open_store(bucket, fast())
    store.write("shard", bytes(10_000))
    fault_proxy.fail("drip", "shard", methods=("GET",))
    with pytest.raises(
        StorageError, match="the deadline has passed while data still arrived"
    ) as failure:
        store.download("shard", tmp_path / "shard", deadline_s=1.0)
    assert failure.value.reason == "timeout"
    assert fault_proxy.count("/shard") == 1


def test_a_stall_longer_than_the_deadline_ends_at_the_deadline(
    bucket: str, fault_proxy: FaultProxy, tmp_path: Path
) -> None:
    import time

    store = open_store(bucket, fast(timeout=60.0))
    store.write("shard", bytes(10_000))
    fault_proxy.fail("stall", "shard", methods=("GET",))
    began = time.monotonic()
    with pytest.raises(StorageError) as failure:
        store.download("shard", tmp_path / "shard", deadline_s=1.0)
    assert failure.value.reason == "timeout"
    assert time.monotonic() - began < 3.0


def test_a_missing_bucket_is_named(s3: S3Server) -> None:
    del s3
    with pytest.raises(StorageError, match="s3://no-such-bucket/x: list: HTTP 404, NoSuchBucket"):
        open_store("s3://no-such-bucket/x", fast()).list()


def test_a_store_pickles_after_use_and_connects_again(store: Store) -> None:
    store.write("key", b"value")
    copy = pickle.loads(pickle.dumps(store))
    assert isinstance(copy, BucketStore)
    assert copy.read("key") == b"value"


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_gets_an_error_instead_of_a_crash(store: Store) -> None:
    store.write("key", b"value")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            store.read("key")
        except StorageError as error:
            os.write(writer, str(error).encode())
        os._exit(0)
    _, status = os.waitpid(child, 0)
    os.close(writer)
    message = os.read(reader, 10_000).decode()
    os.close(reader)
    assert status == 0
    assert "forked from one that already used a bucket" in message
    assert "forkserver" in message
