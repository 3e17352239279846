"""Every fault between bucket and batch, with every number of workers: recovery, or a prompt error
with shard and cause.

Workers come from a fork server, the cache is cold, the bucket is reached over HTTP through a proxy
that breaks things.
"""

from __future__ import annotations

import multiprocessing
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from servers.datasets import SEQ_LEN, SmallStream, small_stream
from servers.fault_proxy import FaultProxy

from stream_pretrain.config.sections import StorageConfig
from stream_pretrain.data.cache.cache_setup import ShardSource
from stream_pretrain.data.epoch_stream import EpochStream, LoaderSettings
from stream_pretrain.data.fetching.fetch_shard import FetchSettings
from stream_pretrain.data.fetching.shard_stream import ReadSettings
from stream_pretrain.data.reading.shard_dataset import ShardDataset, open_dataset
from stream_pretrain.data.sample_order.position import EpochClock
from stream_pretrain.errors import ShardError
from stream_pretrain.mds.index import read_index
from stream_pretrain.order import Order
from stream_pretrain.storage.store import open_store

GLOBAL_BATCH, MICRO_BATCH, STEPS = 8, 4, 25
BAD_SHARD = "shard.00003.mds.zstd"
IMPATIENT = {"timeout": 1.0, "deadline": 4.0}
PROMPT_S = 40.0  # on a machine that does other things; a hang is for ever

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]
WORKERS = [0, pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(4, marks=pytest.mark.slow)]


def cases(faults: list[tuple[Any, ...]]) -> list[Any]:
    """Each fault with 0, 1, 2 and 4 workers; the default run has 0 for all and 2 for the first."""
    return [
        pytest.param(
            *fault,
            workers,
            id=f"{fault[0]}-{'-'.join(map(str, fault[1].values()))}-{workers}-workers",
            marks=() if workers == 0 or (workers == 2 and number == 0) else pytest.mark.slow,
        )
        for number, fault in enumerate(faults)
        for workers in (0, 1, 2, 4)
    ]


@pytest.fixture(autouse=True)
def _no_children_left() -> Iterator[None]:
    """Workers ignore SIGTERM, so one that outlived its loader would hold up the end of tests."""
    yield
    for child in multiprocessing.active_children():
        child.kill()


@dataclass(frozen=True)
class Bucket:
    """A stream in a bucket behind the proxy, and where it is cached."""

    location: str
    stream: SmallStream
    proxy: FaultProxy
    cache: Path
    made: list[ShardDataset] = field(default_factory=list)

    def config(self, **changes: Any) -> StorageConfig:
        settings = {"timeout": 5.0, "retries": 3, "deadline": 20.0}
        return StorageConfig(endpoint_url=self.proxy.endpoint, **{**settings, **changes})

    def open(self, directory: Path | None = None, **changes: Any) -> ShardDataset:
        """The dataset of this stream; indexes are read before faults are set."""
        config = self.config(**changes)
        store = open_store(self.location, config)
        source = ShardSource(
            name="web",
            store=store,
            index=read_index(store),
            directory=directory or self.cache,
            drawn=GLOBAL_BATCH * STEPS,
        )
        dataset = open_dataset(
            [source],
            order=Order(
                global_batch=GLOBAL_BATCH, drawn=(GLOBAL_BATCH * STEPS,), canonical_nodes=8
            ),
            batch_size=MICRO_BATCH,
            settings=ReadSettings(
                row_ids=SEQ_LEN + 1, fetch=FetchSettings(deadline_s=config.deadline)
            ),
        )
        self.made.append(dataset)
        return dataset


@pytest.fixture
def web(bucket: str, fault_proxy: FaultProxy, tmp_path: Path) -> Iterator[Bucket]:
    """Ten compressed shards in a bucket."""
    stream = small_stream(tmp_path / "data")
    store = open_store(f"{bucket}/web")
    for file in sorted(stream.directory.iterdir()):
        store.upload(file, file.name)
    found = Bucket(store.location, stream, fault_proxy, tmp_path / "cache")
    yield found
    for dataset in found.made:
        dataset.close()


def epoch(dataset: ShardDataset, workers: int) -> list[int]:
    """Sample ids of one epoch, through the loader that training uses."""
    clock = EpochClock(
        global_batch=GLOBAL_BATCH, steps_per_epoch=STEPS, num_canonical_nodes=8, shuffle_seed=0
    )
    settings = LoaderSettings(
        micro_batch=MICRO_BATCH, micro_steps=GLOBAL_BATCH // MICRO_BATCH, workers=workers
    )
    stream = EpochStream(dataset, clock, settings, 0)
    try:
        return [
            sample
            for _ in range(STEPS)
            for batch in stream.next_batches(GLOBAL_BATCH // MICRO_BATCH)
            for sample in batch.sample_ids.tolist()
        ]
    finally:
        stream.close_epoch()


HEALS: list[tuple[Any, ...]] = [
    ("status", {"status": 500, "times": 2}),
    ("status", {"status": 503, "times": 1, "code": "SlowDown"}),
    ("drop", {"times": 1}),
    ("reset", {"times": 1}),
    ("truncate", {"times": 1}),
    ("short", {"times": 1}),
    ("corrupt", {"times": 1}),
    ("stall", {"times": 1}),
    ("delay", {"seconds": 0.3, "times": 3}),
]


@pytest.mark.parametrize(("kind", "options", "workers"), cases(HEALS))
def test_a_fault_that_passes_costs_time_and_no_sample(
    kind: str, options: dict[str, Any], workers: int, web: Bucket
) -> None:
    dataset = web.open(**(IMPATIENT if kind == "stall" else {}))
    rule = web.proxy.fail(kind, "shard.0000", methods=("GET",), **options)  # type: ignore[arg-type]
    assert sorted(epoch(dataset, workers)) == list(range(GLOBAL_BATCH * STEPS))
    assert rule.hits == options["times"]


FAILS: list[tuple[Any, ...]] = [
    ("status", {"status": 500}, "HTTP 500, InternalError"),
    ("status", {"status": 400, "code": "BadRequest"}, "HTTP 400, BadRequest"),
    ("status", {"status": 403, "code": "AccessDenied"}, "HTTP 403, AccessDenied"),
    ("status", {"status": 404, "code": "NoSuchKey"}, "HTTP 404, NoSuchKey"),
    ("drop", {}, "the connection broke"),
    ("reset", {}, "the connection was reset"),
    ("truncate", {}, "ended before the whole body"),
    ("stall", {}, "no data arrived in time"),
    ("drip", {}, "deadline"),
    ("short", {}, "bytes arrived, expected"),
    ("corrupt", {}, "xxh64 is"),
]


@pytest.mark.parametrize(("kind", "options", "cause", "workers"), cases(FAILS))
def test_a_fault_that_stays_ends_in_a_prompt_error_with_shard_and_cause(
    kind: str, options: dict[str, Any], cause: str, workers: int, web: Bucket
) -> None:
    dataset = web.open(**(IMPATIENT if kind in ("stall", "drip") else {}))
    web.proxy.fail(kind, BAD_SHARD, methods=("GET",), **options)  # type: ignore[arg-type]
    began = time.monotonic()
    with pytest.raises(ShardError) as failure:
        epoch(dataset, workers)
    assert time.monotonic() - began < PROMPT_S
    assert f"{web.location}/{BAD_SHARD}" in str(failure.value)
    assert cause in str(failure.value)
    assert str(failure.value).startswith(f"{web.location}/{BAD_SHARD}: ")
    assert not (web.cache / BAD_SHARD.removesuffix(".zstd")).exists()


@pytest.mark.parametrize("workers", WORKERS)
def test_a_shard_that_is_missing_is_named(workers: int, web: Bucket) -> None:
    dataset = web.open()
    open_store(web.location).delete(BAD_SHARD)
    with pytest.raises(
        ShardError, match=f"^{web.location}/{BAD_SHARD}: download: HTTP 404, NoSuch"
    ):
        epoch(dataset, workers)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 KiB; needs the right to mount one."""
    directory = tmp_path / "small"
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(directory)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("may not mount a file system")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)


@pytest.mark.parametrize("workers", WORKERS)
def test_a_full_disk_is_named(workers: int, web: Bucket, small_disk: Path) -> None:
    dataset = web.open(small_disk / "cache")
    (small_disk / "ballast").write_bytes(bytes(8192))
    with pytest.raises(
        ShardError, match=f"No space left on device at {small_disk}.*data.cache.limit"
    ):
        epoch(dataset, workers)
    until = time.monotonic() + 20
    while list(small_disk.rglob("*.tmp")) and time.monotonic() < until:
        time.sleep(0.05)  # another thread may still be at its own shard
    assert not list(small_disk.rglob("*.tmp"))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_shard_removed_from_the_cache_is_fetched_again(workers: int, web: Bucket) -> None:
    dataset = web.open()
    epoch(dataset, 0)
    for file in web.cache.glob("shard.*"):
        file.unlink()
    again = web.open()
    assert sorted(epoch(again, workers)) == list(range(GLOBAL_BATCH * STEPS))


def test_each_retry_is_logged_once(web: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    dataset = web.open()
    web.proxy.fail("status", BAD_SHARD, methods=("GET",), status=500, times=2)
    epoch(dataset, 0)
    lines = [r.getMessage() for r in caplog.records if r.name == "stream_pretrain.data"]
    assert len(lines) == 2
    assert f"{BAD_SHARD}: download: HTTP 500" in lines[0]
    assert "(attempt 1 of 3, next in" in lines[0]
    assert "(attempt 2 of 3" in lines[1]


def test_a_slow_shard_is_named_while_it_is_waited_for(
    web: Bucket, caplog: pytest.LogCaptureFixture
) -> None:
    config = web.config(timeout=5.0, deadline=10.0)
    store = open_store(web.location, config)
    index = read_index(store)
    web.proxy.fail("delay", BAD_SHARD, methods=("GET",), seconds=0.8, times=1)
    from stream_pretrain.data.fetching.fetch_shard import fetch_shard

    fetch_shard(index.shards[3], store, web.cache, FetchSettings(warn_after_s=0.2))
    lines = [record.getMessage() for record in caplog.records]
    assert any(f"waiting for shard {web.location}/{BAD_SHARD} since" in line for line in lines)
