"""Shards that are not what their index says: fetched again or refused, never read."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from servers.datasets import SEQ_LEN, SmallStream, small_stream
from streaming.base.compression import compress

from stream_pretrain.data.cache.cache_setup import ShardSource
from stream_pretrain.data.fetching.fetch_shard import FetchSettings, fetch_shard
from stream_pretrain.data.fetching.shard_stream import ReadSettings
from stream_pretrain.data.node.slow_wait_log import SlowWaitLog
from stream_pretrain.data.reading.shard_dataset import ShardDataset, open_dataset
from stream_pretrain.data.reading.shard_files import ShardFiles
from stream_pretrain.errors import ConfigError, ShardError, StorageError
from stream_pretrain.mds.decompress import unpacked
from stream_pretrain.mds.index import read_index
from stream_pretrain.order import Order
from stream_pretrain.storage.store import open_store
from stream_pretrain.system.file_lock import try_lock

ALGORITHMS = ["zstd", "gz", "bz2", "br", "snappy"]


def opened(
    stream: SmallStream, directory: Path | None, *, verify: Any = "arrival", **settings: Any
) -> ShardDataset:
    store = open_store(stream.directory)
    source = ShardSource(
        name="a",
        store=store,
        index=read_index(store),
        directory=directory,
        drawn=len(stream.rows),
    )
    return open_dataset(
        [source],
        order=Order(global_batch=1, drawn=(len(stream.rows),), canonical_nodes=1, shuffle=False),
        batch_size=1,
        settings=ReadSettings(row_ids=SEQ_LEN + 1, fetch=FetchSettings(verify=verify), **settings),
    )


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_was_packed_comes_back(algorithm: str) -> None:
    data = os.urandom(300_000) + bytes(300_000)
    packed = compress(algorithm, data)
    for size in (1, 7_001, len(packed)) if algorithm != "snappy" else (len(packed),):
        chunks = [packed[at : at + size] for at in range(0, len(packed), size)]
        assert b"".join(unpacked(chunks, algorithm, limit=len(data), place="x")) == data


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_unpacks_to_more_than_promised_is_refused_without_being_held(algorithm: str) -> None:
    packed = compress({"br": "br:1"}.get(algorithm, algorithm), bytes(200 << 20))
    taken = 0
    with pytest.raises(StorageError, match="unpacks to more than the 1,000 bytes") as failure:
        for piece in unpacked([packed], algorithm, limit=1_000, place="s3://b/shard"):
            taken += len(piece)
    assert failure.value.reason == "damaged"
    assert taken <= 1_000


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("damage", ["torn", "noise", "empty"])
def test_what_cannot_be_unpacked_is_refused(algorithm: str, damage: str) -> None:
    packed = compress(algorithm, os.urandom(50_000))
    broken = {"torn": packed[: len(packed) // 2], "noise": b"\xff" * 50_000, "empty": b""}[damage]
    with pytest.raises(StorageError) as failure:
        got = sum(map(len, unpacked([broken], algorithm, limit=50_000, place="s3://b/shard")))
        if got < 50_000:  # a frame may end early without a word: then the size check speaks
            raise StorageError("s3://b/shard: too short", "damaged")
    assert failure.value.reason == "damaged"
    assert str(failure.value).startswith("s3://b/shard: ")


def test_a_shard_that_unpacks_to_more_than_its_index_says_is_named(tmp_path: Path) -> None:
    stream = small_stream(tmp_path / "web", shards=2)
    bomb = compress("zstd", bytes(300 << 20))
    (stream.directory / stream.names[1]).write_bytes(bomb)
    index = stream.index()
    index["shards"][1]["zip_data"] |= {"bytes": len(bomb), "hashes": {}}
    stream.rewrite_index(index)
    dataset = opened(stream, tmp_path / "cache")
    with pytest.raises(ShardError, match=r"shard\.00001\.mds\.zstd: unpacks to more than the"):
        dataset[25]
    dataset.close()
    assert not [path for path in (tmp_path / "cache").iterdir() if path.name.endswith(".tmp")]


def test_content_that_fits_its_packed_hash_alone_is_refused(tmp_path: Path) -> None:
    stream = small_stream(tmp_path / "web", shards=1)
    index = stream.index()
    index["shards"][0]["raw_data"]["hashes"]["xxh64"] = "0" * 16
    stream.rewrite_index(index)
    store = open_store(stream.directory)
    with pytest.raises(ShardError, match=r"unpacked: xxh64 is .*, expected 0000"):
        fetch_shard(read_index(store).shards[0], store, tmp_path / "cache", FetchSettings())
    fetch_shard(
        read_index(store).shards[0], store, tmp_path / "cache", FetchSettings(verify="sizes")
    )


def test_a_local_shard_is_verified_in_place_and_never_deleted(tmp_path: Path) -> None:
    stream = small_stream(tmp_path / "web", shards=2, compression=None)
    path = stream.directory / stream.names[1]
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    dataset = opened(stream, None)
    assert (dataset[3][1] == stream.rows[3]).all()
    with pytest.raises(ShardError, match=r"shard\.00001\.mds: xxh64 is .*, index\.json says"):
        dataset[25]
    dataset.close()
    assert path.read_bytes() == data
    lax = opened(stream, None, verify="sizes")
    assert lax[25][0] == 25
    lax.close()


def test_a_local_shard_that_is_missing_is_named(tmp_path: Path) -> None:
    stream = small_stream(tmp_path / "web", shards=2, compression=None)
    (stream.directory / stream.names[1]).unlink()
    dataset = opened(stream, None)
    with pytest.raises(ShardError, match=r"shard\.00001\.mds: is missing, index\.json lists it"):
        dataset[25]
    dataset.close()


@pytest.mark.parametrize(("verify", "noticed"), [("arrival", False), ("full", True)])
def test_a_cached_shard_with_a_flipped_bit_is_fetched_again_when_all_is_verified(
    verify: str, noticed: bool, tmp_path: Path
) -> None:
    stream = small_stream(tmp_path / "web", shards=1)
    first = opened(stream, tmp_path / "cache")
    first[0]
    first.close()
    path = tmp_path / "cache" / "shard.00000.mds"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    again = opened(stream, tmp_path / "cache", verify=verify)
    assert bool((again[19][1] == stream.rows[19]).all()) is noticed
    again.close()


def test_a_cached_shard_that_was_cut_short_is_fetched_again(tmp_path: Path) -> None:
    stream = small_stream(tmp_path / "web", shards=1)
    first = opened(stream, tmp_path / "cache")
    first[0]
    first.close()
    path = tmp_path / "cache" / "shard.00000.mds"
    path.write_bytes(path.read_bytes()[:-8])
    again = opened(stream, tmp_path / "cache")
    assert (again[19][1] == stream.rows[19]).all()
    again.close()


def test_a_limit_keeps_the_cache_small_and_the_data_whole(tmp_path: Path) -> None:
    stream = small_stream(tmp_path / "web", shards=10)
    limit = 6 * read_index(open_store(stream.directory)).shards[0].raw.size
    dataset = opened(stream, tmp_path / "cache", cache_limit=limit)
    for place in [*range(0, 200, 7), *range(199, 0, -11)]:
        assert (dataset[place][1] == stream.rows[place]).all()
        size = sum(path.stat().st_size for path in (tmp_path / "cache").glob("*.mds"))
        assert size <= limit
    assert dataset.cache_usage <= limit
    dataset.close()


def test_a_limit_never_deletes_the_only_copy(tmp_path: Path) -> None:
    remote = small_stream(tmp_path / "remote", shards=10)
    local = small_stream(tmp_path / "local", shards=10, compression=None)
    store, place = open_store(remote.directory), open_store(local.directory)
    sources = [
        ShardSource(name="a", store=place, index=read_index(place), directory=None, drawn=200),
        ShardSource(
            name="b", store=store, index=read_index(store), directory=tmp_path / "cache", drawn=200
        ),
    ]
    limit = 5 * sources[0].index.shards[0].raw.size
    dataset = open_dataset(
        sources,
        order=Order(global_batch=4, drawn=(200, 200), canonical_nodes=4),
        batch_size=4,
        settings=ReadSettings(row_ids=SEQ_LEN + 1, cache_limit=limit),
    )
    assert sorted(sample for sample, _ in dataset) == list(range(400))
    dataset.close()
    assert len(list(local.directory.glob("*.mds"))) == 10
    assert len(list((tmp_path / "cache").glob("*.mds"))) <= 5


def test_a_cache_that_thrashes_is_an_error_and_not_a_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = small_stream(tmp_path / "web", shards=2)
    dataset = opened(stream, tmp_path / "cache", cache_limit=10**6)
    bring = ShardDataset._bring

    def bring_and_lose(self: ShardDataset, shard_id: int, claim: int) -> None:
        bring(self, shard_id, claim)
        self._evict_shard(shard_id)

    monkeypatch.setattr(ShardDataset, "_bring", bring_and_lose)
    with pytest.raises(ShardError, match="was removed from the cache 8 times"):
        dataset[0]
    dataset.close()


def test_one_stream_listed_twice_is_refused(tmp_path: Path) -> None:
    stream = small_stream(tmp_path / "web", shards=2, compression=None)
    store = open_store(stream.directory)
    source = ShardSource(name="a", store=store, index=read_index(store), directory=None, drawn=40)
    with pytest.raises(ConfigError, match="is used by two streams"):
        open_dataset(
            [source, source],
            order=Order(global_batch=4, drawn=(40, 40), canonical_nodes=4),
            batch_size=4,
            settings=ReadSettings(row_ids=8),
        )


def claimed(dataset: ShardDataset) -> int:
    """The first shard, as if another worker were fetching it."""
    claim = try_lock(dataset._claim_file(0))
    assert claim is not None
    dataset._shard_states[0] = 2
    return claim


def test_a_shard_that_another_worker_fetches_is_waited_for(tmp_path: Path) -> None:
    stream = small_stream(tmp_path / "web", shards=1)
    dataset = opened(stream, tmp_path / "cache")
    timer = threading.Timer(0.3, dataset._bring, args=[0, claimed(dataset)])
    timer.start()
    assert dataset[4][0] == 4
    timer.join()
    dataset.close()


def test_a_shard_whose_fetcher_was_killed_is_taken_over(tmp_path: Path) -> None:
    stream = small_stream(tmp_path / "web", shards=1)
    dataset = opened(stream, tmp_path / "cache")
    threading.Timer(0.3, os.close, args=[claimed(dataset)]).start()
    assert dataset[4][0] == 4
    dataset.close()


def test_a_shard_that_another_worker_never_brings_is_an_error_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = small_stream(tmp_path / "web", shards=1)
    dataset = opened(stream, tmp_path / "cache")
    claim = claimed(dataset)
    monkeypatch.setattr(SlowWaitLog, "waited_s", property(lambda _self: 10_000.0))
    with pytest.raises(ShardError, match="another worker has been fetching it for 10000 s"):
        dataset[4]
    os.close(claim)
    dataset.close()


def test_an_unexpected_error_while_fetching_names_the_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = small_stream(tmp_path / "web", shards=1)
    dataset = opened(stream, tmp_path / "cache")

    def broken(*_args: Any) -> None:
        raise RuntimeError("out of cheese")

    monkeypatch.setattr("stream_pretrain.data.fetching.shard_stream.fetch_shard", broken)
    with pytest.raises(ShardError, match=r"shard\.00000\.mds\.zstd: RuntimeError: out of cheese"):
        dataset[4]
    dataset.close()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda raw: raw[:40], "ends within its table of offsets"),
        (lambda raw: b"\x13" + raw[1:], "it holds 19 samples, index.json says 20"),
        (lambda raw: raw[:4] + b"\xff\xff\xff\x7f" + raw[8:], "leads out of the file"),
        (lambda raw: raw[:4] + b"\0\0\0\0" + raw[8:], "leads out of the file"),
    ],
)
def test_a_shard_with_a_broken_table_is_refused(change: Any, words: str, tmp_path: Path) -> None:
    stream = small_stream(tmp_path / "web", shards=1, compression=None)
    path = stream.directory / stream.names[0]
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ValueError, match=words):
        ShardFiles(4).sample(0, path, 20, 0)


def test_a_shard_cut_short_while_it_is_read_is_an_error_and_not_a_bus_error(tmp_path: Path) -> None:
    stream = small_stream(tmp_path / "web", shards=1, compression=None)
    path = stream.directory / stream.names[0]
    files = ShardFiles(4)
    assert len(files.sample(0, path, 20, 19)) == 2 * (SEQ_LEN + 1)
    os.truncate(path, path.stat().st_size - 4)
    with pytest.raises(ValueError, match="it ends 4 bytes before sample 19 does"):
        files.sample(0, path, 20, 19)
    files.close()


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_open_files_stay_few(tmp_path: Path) -> None:
    stream = small_stream(tmp_path / "web", shards=10, compression=None)
    files = ShardFiles(3)
    before = open_files()
    for shard, name in enumerate(stream.names):
        files.sample(shard, stream.directory / name, 20, 0)
    assert open_files() - before == 3
    files.close()
    assert open_files() == before


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # the library's open file
def test_the_same_bytes_as_the_library_reads(tmp_path: Path) -> None:
    from streaming import LocalDataset

    stream = small_stream(tmp_path / "web", shards=3, compression=None)
    ours, theirs = opened(stream, None), LocalDataset(local=str(stream.directory))
    for place in range(len(stream.rows)):
        assert (ours[place][1] == theirs[place]["tokens"]).all()
        assert (ours[place][1] == np.asarray(stream.rows[place])).all()
    ours.close()


def test_state_is_json_that_the_library_understands(tmp_path: Path) -> None:
    stream = small_stream(tmp_path / "web", shards=3, compression=None)
    dataset = opened(stream, None)
    state = dataset.state_dict(5, from_beginning=True)
    assert json.loads(json.dumps(state))["sample_in_epoch"] == 5
    dataset.load_state_dict(
        {**state, "epoch": 0, "sample_in_epoch": 8, "initial_physical_nodes": 1}
    )
    assert len([sample for sample, _ in dataset]) == 52
    assert len([sample for sample, _ in dataset]) == 60
    dataset.close()


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    stream = small_stream(tmp_path / "web", shards=1)
    store = open_store(stream.directory)
    (tmp_path / "file").write_bytes(b"in the way")
    target = tmp_path / "file" / "cache"
    with pytest.raises(ShardError, match=rf"shard\.00000\.mds\.zstd: Not a directory at {target}"):
        fetch_shard(read_index(store).shards[0], store, target, FetchSettings())
