"""A worker that is killed: a prompt error, and nothing that stands in the way of the next epoch."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest
from local_dataset import opened_local

from stream_pretrain.data.epoch_stream import EpochStream, LoaderSettings
from stream_pretrain.data.sample_order.position import EpochClock
from stream_pretrain.errors import DataError


def test_a_killed_worker_is_noticed_and_the_next_epoch_is_whole(tmp_path: Path) -> None:
    dataset = opened_local(tmp_path)
    clock = EpochClock(global_batch=8, steps_per_epoch=25, num_canonical_nodes=8, shuffle_seed=0)
    settings = LoaderSettings(micro_batch=8, micro_steps=1, workers=2, prefetch_batches=2)
    stream = EpochStream(dataset, clock, settings, 0)
    stream.next_batches(1)
    worker = multiprocessing.active_children()[0]
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(DataError, match=r"A data worker died .*: lower data\.workers"):
        for _ in range(24):
            stream.next_batches(1)
    assert time.monotonic() - began < 30
    stream.seek(0)
    ids = [sample for _ in range(25) for sample in stream.next_batches(1)[0].sample_ids.tolist()]
    assert sorted(ids) == list(range(200))
    stream.close_epoch()
    for child in multiprocessing.active_children():
        child.kill()
    dataset.close()
