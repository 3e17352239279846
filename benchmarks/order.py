"""What an epoch's order costs and how well it mixes. In: a number of samples. Out: one line a case,
or JSON. Reads no sample: the library's own functions order shards that do not exist.

    python benchmarks/order.py --samples 10e6 [--json]

Every case runs in a process of its own, as rank 0 of a node does at every epoch and every resume.

- seconds: CPU time to make one epoch's order;
- memory: growth of that process at its peak, and what stays while the epoch is read;
- met: distinct shards among 1,000 samples that follow one another, over what a perfect shuffle
  meets (1.0: as good as perfect; a little above is possible, since interleaving spreads);
- drift: how far the mean place in the data of 20,000 samples that follow one another is from the
  middle, root mean square over the epoch, over what a perfect shuffle has (1.0: perfect; 100:
  a stretch of training sees only a part of the data);
- start: GiB of shards that the first ten steps touch: what must arrive before the tenth;
- live: shards that are begun and not finished, at the worst moment, over all shards: what a cache
  must hold so that no shard is fetched twice.

`streaming` is what the library does on one node when nothing is set (`py1e`, one canonical node,
blocks of 4 million samples).
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_pretrain.data.sample_order.epoch_order import partitioned_ids
from stream_pretrain.order import Order, canonical_nodes, samples_drawn
from stream_pretrain.units import parse_count

GLOBAL_BATCH = 512
SAMPLES_PER_SHARD = 8184  # 32 MiB of 2,049 two-byte ids, the converter's default
NEAR, STRETCH = 1_000, 20_000
CASES: dict[str, dict[str, Any]] = {
    "streaming": {"shuffle_algo": "py1e", "shuffle_block_size": 4_000_000, "canonical_nodes": 1},
    **{
        f"{algo} {block or ''}".strip(): {"shuffle_algo": algo, "shuffle_block_size": block or 1}
        for algo, block in (
            ("py1br", 1 << 18),
            ("py1br", 1 << 16),
            ("py1br", 1 << 15),
            ("py1e", 1 << 18),
            ("py1e", 1 << 16),
            ("py1e", 1 << 15),
            ("py1s", None),
            ("py2s", None),
        )
    },
}


def measure(case: dict[str, Any], samples: int) -> dict[str, float]:
    """All figures of one case; MiB and seconds."""
    shards = [SAMPLES_PER_SHARD] * (samples // SAMPLES_PER_SHARD)
    shards += [samples % SAMPLES_PER_SHARD] if samples % SAMPLES_PER_SHARD else []
    settings = {"canonical_nodes": canonical_nodes(GLOBAL_BATCH), **case}
    whole = settings["canonical_nodes"] == 1  # as the library does where no epoch_size is set
    drawn = (samples,) if whole else samples_drawn([samples], GLOBAL_BATCH)
    order = Order(global_batch=GLOBAL_BATCH, drawn=drawn, **settings)
    before, begun = _peak_mib(), time.process_time()
    ids = partitioned_ids(order, [shards], 1).ravel()
    seconds = time.process_time() - begun
    ids = ids[ids >= 0]
    return {
        "seconds": seconds,
        "peak_mib": _peak_mib() - before,
        "kept_mib": ids.nbytes / 2**20,
        **mixing(ids // SAMPLES_PER_SHARD, len(shards), ids / samples),
    }


def mixing(shard_of: NDArray[np.int64], shards: int, places: NDArray[Any]) -> dict[str, float]:
    """`met`, `drift` and `live`, as the module describes them. `places` are in [0, 1)."""
    near = shard_of[: len(shard_of) // NEAR * NEAR].reshape(-1, NEAR)[
        :: max(1, len(shard_of) // 10**6)
    ]
    distinct = np.mean([len(np.unique(window)) for window in near])
    expected = shards * (1 - (1 - 1 / shards) ** NEAR)
    means = places[: len(places) // STRETCH * STRETCH].reshape(-1, STRETCH).mean(1)
    drift = np.sqrt(np.mean((means - places.mean()) ** 2)) * np.sqrt(12 * STRETCH)
    first, last = np.full(shards, len(shard_of)), np.zeros(shards, np.int64)
    np.minimum.at(first, shard_of, np.arange(len(shard_of)))
    last[shard_of] = np.arange(len(shard_of))  # the last assignment wins
    moments = np.concatenate([first, last + 1])
    changes = np.repeat([1, -1], shards)[np.argsort(moments, kind="stable")]
    return {
        "met": float(distinct / expected),
        "drift": float(drift),
        "start": len(np.unique(shard_of[: 10 * GLOBAL_BATCH])) / 32,
        "live": float(changes.cumsum().max() / shards),
    }


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def in_a_process(name: str, samples: int) -> dict[str, float]:
    """Measure a case in a fresh interpreter."""
    command = [sys.executable, "-W", "ignore", __file__, "--samples", str(samples), "--case", name]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--samples", type=parse_count, default=10_000_000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--case", choices=CASES, default=None, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case is not None:
        print(json.dumps(measure(CASES[arguments.case], arguments.samples)))
        return
    found = {name: in_a_process(name, arguments.samples) for name in CASES}
    if arguments.json:
        print(json.dumps(found, indent=2))
        return
    names = ("seconds", "peak_mib", "kept_mib", "met", "drift", "start", "live")
    print(f"{'case':16}" + "".join(f"{name:>10}" for name in names))
    for case, figures in found.items():
        print(f"{case:16}" + "".join(f"{figures[name]:10.3f}" for name in names))


if __name__ == "__main__":
    main()
