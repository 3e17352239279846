"""How fast samples reach the loop. In: a number of samples. Out: one line a path, or JSON. Trains
nothing: batches are taken and dropped.

    python benchmarks/data.py --samples 200e3 [--dir /some/disk] [--json]

All paths read one dataset (rows of 2,049 two-byte ids, 32 MiB a shard, not compressed) in batches
of 8 rows in shuffled order, in turns, so that a busy machine slows all; the best turn counts.

- floor: a memory map of the same shards, rows copied into batches in random order: what the memory
  of the machine gives;
- streaming: `StreamingDataset` and `StreamingDataLoader` as the library gives them, collated to
  tensors;
- ours: `EpochStream`, which also checks every id and hashes every row for the data digest.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stream_pretrain.data.cache.cache_setup import ShardSource
from stream_pretrain.data.epoch_stream import EpochStream, LoaderSettings
from stream_pretrain.data.fetching.shard_stream import ReadSettings
from stream_pretrain.data.reading.shard_dataset import open_dataset
from stream_pretrain.data.sample_order.position import EpochClock
from stream_pretrain.mds.index import read_index
from stream_pretrain.order import Order, samples_drawn
from stream_pretrain.storage.store import open_store
from stream_pretrain.units import parse_count

SEQ_LEN, BATCH, GLOBAL_BATCH, SHARD_BYTES = 2048, 8, 64, 1 << 25
VOCABULARY = 50_304
Path_ = Callable[[Path, int], Iterator[Any]]


def write(directory: Path, samples: int) -> None:
    """Shards of random ids, by the library's own writer."""
    from streaming import MDSWriter

    columns = {"tokens": f"ndarray:uint16:{SEQ_LEN + 1}"}
    chance = np.random.default_rng(0)
    with MDSWriter(out=str(directory), columns=columns, size_limit=SHARD_BYTES) as writer:
        for _ in range(samples):
            writer.write({"tokens": chance.integers(0, VOCABULARY, SEQ_LEN + 1, np.uint16)})


def floor(directory: Path, _workers: int) -> Iterator[Any]:
    """Batches from memory maps, endless."""
    maps = []
    for path in sorted(directory.glob("shard.*")):
        raw = np.memmap(path, np.uint8, "r")
        rows = int(raw[:4].view("<u4")[0])
        begin = int(raw[4:8].view("<u4")[0])
        maps.append(raw[begin : begin + rows * 2 * (SEQ_LEN + 1)].view("<u2").reshape(rows, -1))
    chance = np.random.default_rng(1)
    while True:
        chosen = chance.integers(0, len(maps), BATCH)
        rows_here = [maps[n][chance.integers(0, len(maps[n]))] for n in chosen]
        yield torch.from_numpy(np.stack(rows_here).astype(np.int32))


def library(directory: Path, workers: int) -> Iterator[Any]:
    """Batches of the library's own dataset and loader, endless."""
    from streaming import StreamingDataLoader, StreamingDataset

    dataset = StreamingDataset(local=str(directory), shuffle=True, batch_size=BATCH)

    def collate(rows: list[dict[str, Any]]) -> Any:
        return torch.from_numpy(np.stack([row["tokens"] for row in rows]).astype(np.int32))

    loader = StreamingDataLoader(
        dataset, batch_size=BATCH, num_workers=workers, collate_fn=collate, persistent_workers=False
    )
    while True:
        yield from loader


def ours(directory: Path, workers: int) -> Iterator[Any]:
    """Batches of an `EpochStream`, endless."""
    store = open_store(directory)
    index = read_index(store)
    drawn = samples_drawn([index.samples], GLOBAL_BATCH)
    order = Order(global_batch=GLOBAL_BATCH, drawn=drawn, canonical_nodes=GLOBAL_BATCH)
    source = ShardSource(name="a", store=store, index=index, directory=None, drawn=drawn[0])
    dataset = open_dataset(
        [source],
        order=order,
        batch_size=BATCH,
        settings=ReadSettings(row_ids=SEQ_LEN + 1, vocab_size=VOCABULARY),
    )
    clock = EpochClock(
        global_batch=GLOBAL_BATCH,
        steps_per_epoch=order.steps_per_epoch,
        num_canonical_nodes=order.canonical_nodes,
        shuffle_seed=0,
    )
    settings = LoaderSettings(micro_batch=BATCH, micro_steps=GLOBAL_BATCH // BATCH, workers=workers)
    stream = EpochStream(dataset, clock, settings, 0)
    try:
        while True:
            yield from stream.next_batches(settings.micro_steps)
    finally:
        stream.close_epoch()
        dataset.close()


def tokens_per_second(batches: Iterator[Any], seconds: float) -> float:
    """Rate after the first global batch, which opens the epoch."""
    for _ in range(GLOBAL_BATCH // BATCH):
        next(batches)
    begun, taken = time.perf_counter(), 0
    while (spent := time.perf_counter() - begun) < seconds:
        next(batches)
        taken += 1
    return taken * BATCH * SEQ_LEN / spent


PATHS: dict[str, tuple[Path_, int]] = {
    "floor": (floor, 0),
    **{f"streaming, {n} workers": (library, n) for n in (0, 1, 2)},
    **{f"ours, {n} workers": (ours, n) for n in (0, 1, 2)},
}


def main() -> None:
    """Write, measure in turns, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--samples", type=parse_count, default=200_000)
    parser.add_argument("--dir", type=Path, default=None, help="a directory on the disk to read")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each turn")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    best = dict.fromkeys(PATHS, 0.0)
    with tempfile.TemporaryDirectory(dir=arguments.dir) as place:
        write(Path(place), arguments.samples)
        for _ in range(arguments.turns):
            for name, (path, workers) in PATHS.items():
                batches = path(Path(place), workers)
                best[name] = max(best[name], tokens_per_second(batches, arguments.seconds))
                batches.close()  # type: ignore[attr-defined]
    if arguments.json:
        print(json.dumps(best, indent=2))
        return
    for name, rate in best.items():
        print(f"{name:24} {rate / 1e6:8.1f} M tokens/s")


if __name__ == "__main__":
    main()
