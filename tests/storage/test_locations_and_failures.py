"""Places, failures, retries and hashes: pure functions with words that people act on."""

from __future__ import annotations

import errno
import hashlib
from pathlib import Path

import pytest
import xxhash

from stream_pretrain.errors import StorageError
from stream_pretrain.redaction import redact_error
from stream_pretrain.storage.failures import explain, storage_error
from stream_pretrain.storage.hashing import hash_of, is_known, stamp_of, xxh3_128_of, xxh64_of
from stream_pretrain.storage.location import is_remote, join, parse_location
from stream_pretrain.storage.retry import Retry, RetryPolicy, retried


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("s3://b/a/c/", "s3://b/a/c"),
        ("S3://b", "s3://b"),
        ("gcs://b/x", "gs://b/x"),
        ("azure://b//x", "az://b/x"),
        ("/data/x", "/data/x"),
        ("data", "data"),
        ("file:///data/x", "/data/x"),
    ],
)
def test_places_have_one_spelling(text: str, url: str) -> None:
    assert str(parse_location(text)) == url
    assert parse_location(url) == parse_location(text)


def test_places_below_a_place() -> None:
    assert join("s3://b/a", "c/d") == "s3://b/a/c/d"
    assert join("s3://b", "c") == "s3://b/c"
    assert join(Path("/x"), "y") == "/x/y"
    assert is_remote("s3://b/x")
    assert not is_remote("file:///x")
    assert not is_remote("/x")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("http://b/x", "scheme must be one of s3, gs, az, file or a plain path, got 'http'"),
        ("s3:///x", "the name of the bucket is missing"),
        ("s3://b/../c", "must not hold '.' or '..' parts"),
        ("", "got an empty string"),
        ("a\0b", "NUL"),
    ],
)
def test_places_that_cannot_be_understood_are_refused(text: str, words: str) -> None:
    with pytest.raises(StorageError) as failure:
        parse_location(text)
    assert words in str(failure.value)


@pytest.mark.parametrize(
    "text",
    ["s3://AKIAKEY:hunter2secret@b/x", "az://b/x?sig=hunter2secret", "s3://b/x#hunter2secret"],
)
def test_credentials_in_a_place_are_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(StorageError) as failure:
        parse_location(text)
    assert "hunter2secret" not in str(failure.value)
    assert "environment" in str(failure.value)


def test_messages_hold_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2hunter2")
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "sv=2020&sig=abcdef")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/home/me/key.json")
    text = redact_error(
        "GET https://me:pw@host/b/k?X-Amz-Signature=123 and s3://key:pw@b with hunter2hunter2, "
        "sv=2020&sig=abcdef, /home/me/key.json"
    )
    for secret in ("pw", "123", "hunter2", "abcdef", "key:"):
        assert secret not in text
    assert "https://host/b/k" in text
    assert "/home/me/key.json" in text


class GenericError(Exception):
    """Named as obstore names it."""


class UnauthenticatedError(Exception):
    """Named as obstore names it."""


@pytest.mark.parametrize(
    ("error", "reason", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "full", "No space left"),
        (OSError(errno.EROFS, "Read-only file system"), "denied", "Read-only"),
        (OSError(errno.EIO, "Input/output error"), "other", "Input/output error"),
        (TimeoutError(), "timeout", "timed out"),
        (UnauthenticatedError("no path 401"), "denied", "denied"),
        (GenericError("Generic S3 error: x: status code: 504 Gateway"), "timeout", "HTTP 504"),
        (GenericError("Generic S3 error: x: status code: 410 Gone"), "absent", "HTTP 410"),
        (GenericError("Generic S3 error: x: status code: 409 Conflict"), "conflict", "HTTP 409"),
        (GenericError("Generic S3 error: x: status code: 416 Range"), "other", "HTTP 416"),
        (GenericError("HTTP error: x\n\nDebug source:\nkind: Timeout"), "timeout", "no data"),
        (
            GenericError("HTTP error: x\n\nDebug source:\nkind: Connect"),
            "unreachable",
            "cannot connect",
        ),
        (GenericError("HTTP error: x"), "unreachable", "the connection broke"),
        (
            GenericError("Error performing token request: status code: 403"),
            "denied",
            "no credentials",
        ),
        (GenericError("Missing credentials"), "denied", "no usable credentials"),
        (GenericError("Odd.\n\nDebug source: {secret}"), "other", "Odd"),
        (GenericError(""), "other", "gave no reason"),
        (GenericError("w " * 400), "other", "…"),
    ],
)
def test_failures_have_a_reason_and_a_short_cause(
    error: Exception, reason: str, words: str
) -> None:
    found, cause = explain(error)
    assert (found, words in cause) == (reason, True), cause
    assert len(cause) < 400
    assert "Debug source" not in cause
    assert str(storage_error(error, "s3://b/k", "read")).startswith("s3://b/k: read: ")


def test_a_storage_error_stays_itself() -> None:
    error = StorageError("s3://b/k: gone", "absent")
    assert storage_error(error, "elsewhere") is error


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def failing(reasons: list[str]) -> tuple[list[int], object]:
    calls: list[int] = []

    def function() -> str:
        calls.append(1)
        if len(calls) <= len(reasons):
            raise StorageError(f"x: number {len(calls)}", reasons[len(calls) - 1])
        return "done"

    return calls, function


def run(function: object, clock: Clock, seen: list[Retry] | None = None, **policy: object) -> str:
    settings = RetryPolicy(clock=clock, sleep=clock.sleep, **policy)  # type: ignore[arg-type]
    on_retry = None if seen is None else seen.append
    return retried(function, place="x", doing="y", policy=settings, on_retry=on_retry)  # type: ignore[arg-type]


def test_waits_grow_and_each_retry_is_told_once() -> None:
    clock, seen = Clock(), list[Retry]()
    calls, function = failing(["timeout", "unreachable", "damaged", "timeout"])
    assert run(function, clock, seen) == "done"
    assert len(calls) == 5
    assert [event.attempt for event in seen] == [1, 2, 3, 4]
    for number, slept in enumerate(clock.slept):
        assert 0.7 * 0.2 * 2**number <= slept <= 0.2 * 2**number


@pytest.mark.parametrize("reason", ["absent", "denied", "conflict", "full", "other"])
def test_what_waiting_cannot_mend_is_not_tried_again(reason: str) -> None:
    calls, function = failing([reason])
    with pytest.raises(StorageError, match="number 1") as failure:
        run(function, Clock())
    assert (len(calls), failure.value.reason) == (1, reason)


def test_attempts_are_bounded_and_counted() -> None:
    clock = Clock()
    calls, function = failing(["timeout"] * 99)
    with pytest.raises(StorageError, match=r"number 8 \(gave up after 8 attempts in \d"):
        run(function, clock)
    assert len(calls) == 8
    assert sum(clock.slept) < 30


def test_a_deadline_bounds_all_attempts_together() -> None:
    clock = Clock()
    _, function = failing(["timeout"] * 99)
    with pytest.raises(StorageError, match="the deadline allows no more"):
        run(function, clock, attempts=99, deadline_s=5.0)
    assert clock.now < 5.0


def test_the_same_damage_twice_is_the_objects_own() -> None:
    calls = []

    def damaged() -> None:
        calls.append(1)
        raise StorageError("x: xxh64 is 1, expected 2", "damaged")

    with pytest.raises(StorageError, match="gave up after 2 attempts"):
        run(damaged, Clock())
    assert len(calls) == 2


def test_hashes_are_those_of_the_libraries(tmp_path: Path) -> None:
    data = b"token" * 1_000_000
    (tmp_path / "f").write_bytes(data)
    assert xxh3_128_of(data) == xxh3_128_of(tmp_path / "f") == xxhash.xxh3_128_hexdigest(data)
    assert xxh64_of(tmp_path / "f") == xxhash.xxh64_hexdigest(data)
    assert hash_of("sha1", tmp_path / "f") == hashlib.sha1(data).hexdigest()
    stamp = stamp_of(tmp_path / "f", name="dir/f")
    assert (stamp.name, stamp.size) == ("dir/f", len(data))
    assert stamp.xxh3_128 == xxh3_128_of(data)
    assert is_known("sha256")
    assert not is_known("crc-of-mine")
    with pytest.raises(ValueError, match="crc-of-mine"):
        hash_of("crc-of-mine", b"")
