"""Arguments of the small runs that the tests of training start."""

from __future__ import annotations

import json
from pathlib import Path

STEPS_PER_EPOCH = 15
TOTAL_STEPS = 3 * STEPS_PER_EPOCH


def fit_arguments(dataset: Path, run: Path, **changes: object) -> list[str]:
    """Arguments of a small `fit`: 8 samples a step, three epochs, a save every 5 steps."""
    settings: dict[str, object] = {
        "run.dir": run,
        "run.seed": 3,
        "model.config": {
            "n_layer": 2,
            "n_head": 2,
            "n_embd": 16,
            "block_size": 16,
            "vocab_size": 257,
            "padded_vocab_size": 320,
        },
        "data.train": [{"local": str(dataset)}],
        "data.workers": 0,
        "data.cache.dir": run.parent / "cache",
        "batch.global_size": 8,
        "batch.micro_size": 4,
        "stop.max_epochs": 3,
        "optimizer.lr": 1e-2,
        "schedule.warmup": 3,
        "evaluation.every": 7,
        "evaluation.batches": 2,
        "checkpoint.every": 5,
        "logging.every": 4,
        "compute.threads": 1,
        "compute.accelerator": "cpu",
        **{name.replace("__", "."): value for name, value in changes.items()},
    }
    arguments = ["fit"]
    for name, value in settings.items():
        text = json.dumps(value) if isinstance(value, dict | list) else str(value)
        arguments += [f"--{name}", text]
    return arguments
