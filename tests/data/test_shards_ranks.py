"""Two ranks on a node share a cache: each shard is fetched once, and a failure reaches both."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from servers.datasets import small_stream
from servers.fault_proxy import FaultProxy
from servers.ports import free_port

from stream_pretrain.storage.store import open_store

RANK = Path(__file__).with_name("shards_rank.py")
WORKERS = [pytest.param(0), pytest.param(2, marks=pytest.mark.slow)]


def uploaded(bucket: str, tmp_path: Path) -> str:
    stream = small_stream(tmp_path / "data")
    store = open_store(f"{bucket}/web")
    for file in stream.directory.iterdir():
        store.upload(file, file.name)
    return store.location


def ranks(
    location: str, proxy: FaultProxy, tmp_path: Path, workers: int, pause: float = 0.0
) -> list[Any]:
    """What each of two ranks said."""
    port = free_port()
    running = []
    for rank in range(2):
        env = {
            **os.environ,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        command = [sys.executable, str(RANK), location, proxy.endpoint, str(tmp_path / "cache")]
        command += [str(tmp_path / "jobs"), str(workers), str(pause)]
        pipe = subprocess.PIPE
        running.append(subprocess.Popen(command, env=env, stdout=pipe, stderr=pipe, text=True))
    said = []
    for process in running:
        out, err = process.communicate(timeout=240)
        assert process.returncode == 0, err
        said.append(json.loads(out.strip().splitlines()[-1]))
    assert [path.name for path in (tmp_path / "jobs").iterdir()] == ["registry"]
    return said


@pytest.mark.parametrize("workers", WORKERS)
def test_ranks_share_the_samples_and_fetch_each_shard_once(
    workers: int, bucket: str, fault_proxy: FaultProxy, tmp_path: Path
) -> None:
    location = uploaded(bucket, tmp_path)
    said = ranks(location, fault_proxy, tmp_path, workers)
    steps = [sorted(a + b) for a, b in zip(said[0]["steps"], said[1]["steps"], strict=True)]
    assert all(len(set(step)) == 8 for step in steps)
    assert sorted(sample for step in steps for sample in step) == list(range(200))
    for number in range(10):
        assert fault_proxy.count(f"/shard.{number:05}.mds.zstd") == 1


@pytest.mark.parametrize("workers", WORKERS)
def test_a_shard_that_fails_is_named_on_every_rank(
    workers: int, bucket: str, fault_proxy: FaultProxy, tmp_path: Path
) -> None:
    location = uploaded(bucket, tmp_path)
    fault_proxy.fail("status", "shard.00003", methods=("GET",), status=500)
    for said in ranks(location, fault_proxy, tmp_path, workers, pause=0.3):
        assert said["error"].startswith(f"{location}/shard.00003.mds.zstd: download: HTTP 500")
