"""A directory as a store: whole writes, conditions, and keys that stay inside."""

from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path

import pytest

from stream_pretrain.errors import StorageError
from stream_pretrain.storage import transfer
from stream_pretrain.storage.hashing import xxh3_128_of
from stream_pretrain.storage.store import Store, open_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path / "store")


def test_objects_come_back_as_written(store: Store) -> None:
    etag = store.write("a/b.txt", b"hello")
    info = store.head("a/b.txt")
    assert info is not None
    assert (info.key, info.size, info.etag) == ("a/b.txt", 5, etag)
    assert store.read("a/b.txt") == b"hello"
    assert store.read_range("a/b.txt", 1, 3) == b"ell"
    assert store.head("a") is None
    assert store.head("nothing") is None
    with store.open_stream("a/b.txt") as stream:
        assert (stream.read(2), stream.read()) == (b"he", b"llo")
    assert store.is_local
    assert store.path.name == "store"
    assert repr(store) == f"LocalStore({str(store.path)!r})"


def test_lists_are_recursive_sorted_and_without_half_written_files(store: Store) -> None:
    for key in ("z.txt", "a/two", "a/one", "ab/three"):
        store.write(key, b"x")
    (store.path / "a" / "one.1-2.tmp").write_bytes(b"half")
    assert [info.key for info in store.list()] == ["a/one", "a/two", "ab/three", "z.txt"]
    assert [info.key for info in store.list("a")] == ["a/one", "a/two"]
    assert store.list_dirs() == ["a", "ab"]
    assert store.list_dirs("nothing") == []
    assert [info.key for info in store.child("a").list()] == ["one", "two"]
    assert store.list("nothing") == []


def test_create_only_and_if_match_refuse_what_another_wrote(store: Store) -> None:
    first = store.write("lease", b"1", create_only=True)
    with pytest.raises(StorageError) as failure:
        store.write("lease", b"2", create_only=True)
    assert failure.value.reason == "conflict"
    second = store.write("lease", b"3", if_match=first)
    assert second != first
    with pytest.raises(StorageError, match="was changed by another") as failure:
        store.write("lease", b"4", if_match=first)
    assert failure.value.reason == "conflict"
    assert store.read("lease") == b"3"
    with pytest.raises(StorageError, match="expected") as failure:
        store.write("none", b"4", if_match=first)


def test_a_write_that_fails_leaves_the_old_object_and_no_litter(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write("key", b"old")

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(transfer.os, "fsync", full)
    with pytest.raises(StorageError, match=r"key: No space left on device\. Free some") as failure:
        store.write("key", b"new")
    assert failure.value.reason == "full"
    assert store.read("key") == b"old"
    assert [path.name for path in store.path.iterdir()] == ["key"]


def test_files_go_up_and_down_whole(store: Store, tmp_path: Path) -> None:
    data = os.urandom(3 << 20)
    (tmp_path / "file").write_bytes(data)
    info = store.upload(tmp_path / "file", "deep/down/file")
    assert info.size == len(data)
    hashes = {"xxh3_128": xxh3_128_of(data)}
    target = tmp_path / "there" / "file"
    assert store.download("deep/down/file", target, size=len(data), hashes=hashes) == len(data)
    assert target.read_bytes() == data
    with pytest.raises(StorageError, match="expected 7") as failure:
        store.download("deep/down/file", tmp_path / "other", size=7)
    assert failure.value.reason == "damaged"
    with pytest.raises(StorageError, match="xxh3_128 is"):
        store.download("deep/down/file", tmp_path / "other", hashes={"xxh3_128": "0" * 32})
    assert not (tmp_path / "other").exists()


def test_deleting_is_idempotent_and_prefixes_are_directories(store: Store) -> None:
    for key in ("old/1", "old/2/3", "older/1"):
        store.write(key, b"x")
    store.delete("old/1")
    store.delete("old/1")
    assert store.delete_prefix("old") == 1
    assert store.delete_prefix("old") == 0
    assert [info.key for info in store.list()] == ["older/1"]


@pytest.mark.parametrize("key", ["../outside", "/etc/passwd", "a/../../b"])
def test_keys_that_leave_the_store_are_refused(store: Store, key: str) -> None:
    with pytest.raises(StorageError, match="a key must stay below its store"):
        store.read(key)
    with pytest.raises(StorageError, match="a key must stay below its store"):
        store.write(key, b"x")


def test_what_is_absent_or_no_directory_is_named(store: Store) -> None:
    store.write("file", b"x")
    for key, words in (("none", "No such file"), ("file/below", "Not a directory")):
        with pytest.raises(StorageError, match=words) as failure:
            store.read(key)
        assert failure.value.reason == "absent"
        assert str(store.path / key) in str(failure.value)


def test_a_directory_that_cannot_be_listed_is_an_error(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write("a/b", b"x")

    def refused(path: object) -> object:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(StorageError, match="Permission denied") as failure:
        store.list()
    assert failure.value.reason == "denied"


def test_a_store_pickles(store: Store) -> None:
    store.write("key", b"value")
    assert pickle.loads(pickle.dumps(store)).read("key") == b"value"
