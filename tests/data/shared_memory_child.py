"""A job that reads a local stream. In: data, job directories, `hold` or `read`. Out: its token,
then `read N`.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main(data: str, base: str, mode: str) -> None:
    """Open a job and a dataset; with `hold` wait for a line before the epoch."""
    from stream_pretrain.data.cache.cache_setup import ShardSource
    from stream_pretrain.data.fetching.shard_stream import ReadSettings
    from stream_pretrain.data.node.job_directory import open_job_directory
    from stream_pretrain.data.reading.shard_dataset import open_dataset
    from stream_pretrain.mds.index import read_index
    from stream_pretrain.order import Order
    from stream_pretrain.schema import World
    from stream_pretrain.storage.store import open_store

    job = open_job_directory(World(), base=Path(base))
    store = open_store(data)
    index = read_index(store)
    source = ShardSource(name="a", store=store, index=index, directory=None, drawn=index.samples)
    dataset = open_dataset(
        [source],
        order=Order(global_batch=8, drawn=(index.samples,), canonical_nodes=8),
        batch_size=8,
        settings=ReadSettings(row_ids=8),
        job=job,
    )
    print(job.token, flush=True)
    if mode == "hold":
        sys.stdin.readline()
    print("read", len({sample for sample, _ in dataset}), flush=True)
    dataset.close()
    job.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
