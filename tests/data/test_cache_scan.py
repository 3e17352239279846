"""The cache: one owner, what it holds fits its index, and what is not ours is left alone."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from servers.datasets import SEQ_LEN, SmallStream, small_stream

from stream_pretrain.config.sections import CacheConfig, StreamConfig
from stream_pretrain.data.cache import cache_directory as cache
from stream_pretrain.data.cache.cache_directory import (
    cache_name,
    claim_directory,
    claim_free_directory,
    is_network_path,
    node_root,
    owner_of,
    refuse_foreign,
    scan,
)
from stream_pretrain.data.cache.cache_setup import CachedSource, set_up_cache
from stream_pretrain.data.cache.disk_space import (
    CacheRequirement,
    check_space,
    shuffle_window_bytes,
)
from stream_pretrain.data.fetching.fetch_shard import FetchSettings, fetch_shard
from stream_pretrain.errors import ConfigError, OwnerError
from stream_pretrain.mds.index import StreamIndex, read_index
from stream_pretrain.order import Order
from stream_pretrain.schema import World
from stream_pretrain.storage.store import open_store
from stream_pretrain.system.paths import user_cache_dir

HOLD = """
import sys
from pathlib import Path
from stream_pretrain.data.cache.cache_directory import claim_directory
lock = claim_directory(Path(sys.argv[1]), run="other-run")
print("held", flush=True)
sys.stdin.readline()
"""


def filled(stream: SmallStream, directory: Path) -> StreamIndex:
    """A cache with all shards of a stream."""
    store = open_store(stream.directory)
    index = read_index(store)
    for shard in index.shards:
        fetch_shard(shard, store, directory, FetchSettings())
    scan(directory, index)
    return index


def is_locked(directory: Path) -> bool:
    with (directory / "owner.lock").open("r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_second_process_is_refused_and_told_who_the_first_is(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "cache")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(OwnerError) as failure:
        claim_directory(tmp_path / "cache", run="mine")
    assert f"run other-run (host {os.uname().nodename}, process {holder.pid}, since 20" in str(
        failure.value
    )
    other = claim_free_directory(tmp_path / "cache", run="mine")
    assert other.directory == tmp_path / "cache.2"
    other.close()
    holder.kill()
    holder.communicate()
    lock = claim_directory(tmp_path / "cache", run="mine")
    assert "run mine" in owner_of(tmp_path / "cache")
    lock.close()
    lock.close()


def test_a_machine_with_too_many_jobs_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "MOST_SLOTS", 1)
    (tmp_path / "c").mkdir()
    with (tmp_path / "c" / "owner.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(OwnerError, match="all 1 caches of this stream are in use"):
            claim_free_directory(tmp_path / "c", run="b")


@pytest.mark.parametrize("text", ["", "{}", "[1]", "no json"])
def test_an_owner_that_left_no_name_is_another_process(text: str, tmp_path: Path) -> None:
    (tmp_path / "owner.lock").write_text(text)
    assert owner_of(tmp_path) == "another process"


def test_a_scan_removes_what_is_half_written_or_of_a_wrong_size(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stream, directory = small_stream(tmp_path / "web", shards=4), tmp_path / "cache"
    index = filled(stream, directory)
    (directory / "shard.00001.mds").write_bytes(b"short")
    (directory / "shard.00002.mds.123-abc.tmp").write_bytes(b"half")
    (directory / "shard.00002.mds.zstd").write_bytes(b"packed")
    (directory / "notes.txt").write_text("mine")
    found = scan(directory, index)
    assert (found.kept, found.kept_bytes) == (3, sum(index.shards[n].raw.size for n in (0, 2, 3)))
    assert found.damaged == ("shard.00001.mds",)
    assert found.temporary == ("shard.00002.mds.123-abc.tmp", "shard.00002.mds.zstd")
    assert names(directory) == [
        "index.json",
        "notes.txt",
        "shard.00000.mds",
        "shard.00002.mds",
        "shard.00003.mds",
    ]
    assert "removed 1 files of a wrong size, for example shard.00001.mds" in caplog.text


def test_a_dataset_that_changed_loses_only_the_shards_that_changed(tmp_path: Path) -> None:
    stream, directory = small_stream(tmp_path / "web", shards=4), tmp_path / "cache"
    filled(stream, directory)
    index = stream.index()
    index["shards"][1]["raw_data"]["hashes"]["xxh64"] = "1" * 16
    index["shards"][2]["raw_data"]["hashes"] = {}
    del index["shards"][3]
    stream.rewrite_index(index)
    changed = read_index(open_store(stream.directory))
    found = scan(directory, changed)
    assert found.outdated == ("shard.00001.mds", "shard.00002.mds", "shard.00003.mds")
    assert found.kept == 1
    assert json.loads((directory / "index.json").read_bytes()) == index
    assert scan(directory, changed).outdated == ()


def test_an_unreadable_cached_index_is_replaced(tmp_path: Path) -> None:
    stream, directory = small_stream(tmp_path / "web", shards=2), tmp_path / "cache"
    index = filled(stream, directory)
    (directory / "index.json").write_bytes(b"{torn")
    assert scan(directory, index).kept == 2
    assert (directory / "index.json").read_bytes() == index.text


def test_a_directory_with_a_dataset_of_its_own_is_no_cache(tmp_path: Path) -> None:
    mine = small_stream(tmp_path / "mine", shards=3, compression=None)
    other = small_stream(tmp_path / "other", shards=5)
    index = read_index(open_store(other.directory))
    with pytest.raises(ConfigError, match="holds a dataset of its own"):
        refuse_foreign(mine.directory, index)
    refuse_foreign(other.directory, index)
    refuse_foreign(tmp_path / "new", index)
    claim_directory(tmp_path / "new", run="x").close()
    (tmp_path / "new" / "index.json").write_text("{}")
    refuse_foreign(tmp_path / "new", index)


def placed(
    stream: SmallStream, config: StreamConfig, caches: CacheConfig, **options: Any
) -> CachedSource:
    store = open_store(stream.directory)
    return set_up_cache(
        store,
        read_index(store),
        stream=config,
        cache=caches,
        drawn=10,
        run="r",
        **{"world": World(), **options},
    )


def test_local_shards_are_read_in_place_and_packed_ones_beside_the_data(tmp_path: Path) -> None:
    caches = CacheConfig(dir=str(tmp_path / "caches"))
    plain = small_stream(tmp_path / "plain", compression=None)
    found = placed(plain, StreamConfig(local=str(plain.directory)), caches)
    assert (found.source.directory, found.source.lock, found.requirement) == (None, None, None)
    packed = small_stream(tmp_path / "packed")
    found = placed(packed, StreamConfig(local=str(packed.directory)), caches)
    assert found.source.directory is not None
    assert found.source.directory.parent == tmp_path / "caches"
    assert found.source.directory.name.startswith("packed-")
    assert names(packed.directory) == sorted([*packed.names, "index.json"])
    again = placed(packed, StreamConfig(local=str(packed.directory)), caches)
    assert again.source.directory == found.source.directory
    for place in (found, again):
        assert is_locked(place.source.directory)
        assert place.source.lock is not None
        place.source.lock.close()
    assert not is_locked(found.source.directory)


def test_a_named_cache_has_a_directory_for_each_split(tmp_path: Path) -> None:
    stream = small_stream(tmp_path / "set" / "train")
    config = StreamConfig(remote=str(tmp_path / "set"), local=str(tmp_path / "cache"))
    found = placed(stream, config, CacheConfig())
    assert found.source.directory == tmp_path / "cache" / "train"
    assert found.requirement is not None
    assert found.requirement.present_bytes == 0
    assert is_locked(tmp_path / "cache" / "train")


def test_other_ranks_of_the_node_are_told_the_directory(tmp_path: Path) -> None:
    stream = small_stream(tmp_path / "web")
    config = StreamConfig(remote=str(stream.directory))
    world = World(rank=3, local_rank=1, world_size=4, local_world_size=2, node_rank=1)
    found = placed(
        stream,
        config,
        CacheConfig(dir=str(tmp_path / "caches")),
        world=world,
        share=lambda _text: ["/a", "", "/chosen", ""],
    )
    assert (found.source.directory, found.source.lock) == (Path("/chosen"), None)
    assert not (tmp_path / "caches").exists()


def test_cache_names_are_readable_and_differ_by_location() -> None:
    assert cache_name("web", "s3://a/web") != cache_name("web", "s3://b/web")
    assert cache_name("a/../b c", "x").startswith("a-..-b-c-")
    assert cache_name("..", "x").startswith("stream-")


def test_the_default_is_in_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert user_cache_dir() == tmp_path / "stream-pretrain"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert user_cache_dir().parts[-2:] == (".cache", "stream-pretrain")


def test_nodes_that_share_a_file_system_get_a_directory_each(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(
        cache, "_mounts", lambda: [(Path("/"), "ext4"), (tmp_path, "nfs4"), (Path("/x"), "ext4")]
    )
    assert is_network_path(tmp_path / "not" / "yet" / "there")
    assert node_root(tmp_path) == tmp_path / os.uname().nodename
    assert node_root(Path("/etc")) == Path("/etc")
    monkeypatch.setattr(cache, "_mounts", lambda: [(Path("/"), "fuse.s3fs")])
    assert is_network_path(tmp_path)


def test_mounts_of_this_machine_can_be_read() -> None:
    assert any(str(mount) == "/" for mount, _ in cache._mounts())


MIB = 1 << 20


def need(directory: Path, **changes: int) -> CacheRequirement:
    values = {"raw_bytes": 1000 * MIB, "largest_shard_bytes": 64 * MIB, "present_bytes": 0}
    return CacheRequirement(name="web", directory=directory, **{**values, **changes})


def test_a_disk_that_is_too_small_is_said_with_numbers(tmp_path: Path) -> None:
    needs = [need(tmp_path)]
    assert check_space(needs, limit=None, window_bytes=0, free={str(tmp_path): 2000 * MIB}) == []
    with pytest.raises(ConfigError) as failure:
        check_space(needs, limit=None, window_bytes=0, free={str(tmp_path): 500 * MIB})
    text = str(failure.value)
    assert "data.cache.limit is not set: the shards take 1000" in text
    assert "Set it to at most 436" in text
    kept = [need(tmp_path, present_bytes=900 * MIB)]
    assert check_space(kept, limit=None, window_bytes=0, free={str(tmp_path): 500 * MIB}) == []


def test_a_limit_below_four_shards_is_refused_with_numbers(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as failure:
        check_space([need(tmp_path)], limit=100 * MIB, window_bytes=0)
    assert "data.cache.limit is 100" in str(failure.value)
    assert "Set at least 256" in str(failure.value)


def test_a_limit_below_what_the_shuffle_reads_from_is_a_warning_with_numbers(
    tmp_path: Path,
) -> None:
    lines = check_space([need(tmp_path)], limit=300 * MIB, window_bytes=800 * MIB)
    assert len(lines) == 1
    assert "300" in lines[0]
    assert "800" in lines[0]
    assert check_space([need(tmp_path)], limit=300 * MIB, window_bytes=200 * MIB) == []
    assert check_space([], limit=1, window_bytes=0) == []


def test_the_window_of_a_shuffle_is_its_block_on_each_canonical_node(tmp_path: Path) -> None:
    stream = small_stream(tmp_path / "web", shards=100, rows_per_shard=10)
    index = read_index(open_store(stream.directory))
    size = index.shards[0].raw.size
    order = Order(global_batch=8, drawn=(1000,), canonical_nodes=2, shuffle_block_size=50)
    assert shuffle_window_bytes(order, [index], 1) == 2 * 7 * size
    assert shuffle_window_bytes(order, [index], 2) == 7 * size
    assert shuffle_window_bytes(replace(order, shuffle_block_size=10**6), [index], 1) == 100 * size
    assert shuffle_window_bytes(replace(order, shuffle_algo="py1s"), [index], 2) == 50 * size
    assert shuffle_window_bytes(replace(order, shuffle=False), [index], 1) == 2 * size
    assert SEQ_LEN == 7
