"""One rank of several on a node. In: bucket, endpoint, cache, jobs, workers, pause. Out: a JSON
line: step -> ids, or the error.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from pathlib import Path


def main(location: str, endpoint: str, cache: str, jobs: str, workers: str, pause: str) -> None:
    """Read one epoch of 25 steps of 8 samples."""
    from torch import distributed

    from stream_pretrain.config.sections import CacheConfig, StorageConfig, StreamConfig
    from stream_pretrain.data.cache.cache_setup import set_up_cache
    from stream_pretrain.data.epoch_stream import EpochStream, LoaderSettings
    from stream_pretrain.data.fetching.fetch_shard import FetchSettings
    from stream_pretrain.data.fetching.shard_stream import ReadSettings
    from stream_pretrain.data.node.job_directory import open_job_directory
    from stream_pretrain.data.reading.shard_dataset import environment_world, open_dataset
    from stream_pretrain.data.sample_order.position import EpochClock
    from stream_pretrain.errors import ShardError
    from stream_pretrain.mds.index import read_index
    from stream_pretrain.order import Order
    from stream_pretrain.storage.store import open_store

    distributed.init_process_group("gloo")
    world = environment_world()
    storage = StorageConfig(endpoint_url=endpoint, timeout=1.0, retries=3, deadline=5.0)
    store = open_store(location, storage)
    job = open_job_directory(world, base=Path(jobs))
    placed = set_up_cache(
        store,
        read_index(store),
        stream=StreamConfig(remote=location),
        cache=CacheConfig(dir=cache),
        drawn=200,
        run="test",
        world=world,
    )
    dataset = open_dataset(
        [placed.source],
        order=Order(global_batch=8, drawn=(200,), canonical_nodes=8),
        batch_size=4,
        settings=ReadSettings(row_ids=8, fetch=FetchSettings(deadline_s=5.0)),
        job=job,
    )
    clock = EpochClock(global_batch=8, steps_per_epoch=25, num_canonical_nodes=8, shuffle_seed=0)
    settings = LoaderSettings(micro_batch=4, micro_steps=1, workers=int(workers))
    stream = EpochStream(dataset, clock, settings, 0)
    try:
        steps = []
        for _ in range(25):
            steps.append(stream.next_batches(1)[0].sample_ids.tolist())
            time.sleep(float(pause))
        print(json.dumps({"steps": steps}), flush=True)
    except ShardError as error:
        print(json.dumps({"error": str(error)}), flush=True)
    stream.close_epoch()
    for child in multiprocessing.active_children():
        child.kill()
    distributed.barrier()
    dataset.close()
    job.close()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
