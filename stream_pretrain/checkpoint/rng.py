"""Save and restore the random generators of one rank.

The states are stored as tensors and plain values, so that the file loads with `weights_only=True`.
The order of the data does not depend on these generators.
"""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash

from stream_pretrain.errors import CheckpointError


def capture() -> bytes:
    """Return the states of all generators of this rank as the content of a file.

    These are Python's, numpy's, torch's and, once CUDA is in use, that of this rank's device.
    """
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    saved: dict[str, Any] = {
        "python": {
            "version": version,
            "words": torch.tensor(words, dtype=torch.int64),
            "gauss": gauss,
        },
        "numpy": {
            "name": str(name),
            "keys": torch.from_numpy(np.asarray(keys).astype(np.int64)),
            "position": int(position),
            "has_gauss": int(has_gauss),
            "cached": float(cached),
        },
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.default_generators:  # empty until CUDA is used
        saved["cuda"] = torch.cuda.get_rng_state()
    buffer = io.BytesIO()
    torch.save(saved, buffer)
    return buffer.getvalue()


def restore(path: Path) -> None:
    """Set all generators from a file; `CheckpointError` when it does not hold their states."""
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
        python, legacy = saved["python"], saved["numpy"]
        random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
        keys = legacy["keys"].numpy().astype(np.uint32)
        np.random.set_state(
            (legacy["name"], keys, legacy["position"], legacy["has_gauss"], legacy["cached"])
        )
        torch.set_rng_state(saved["torch"])
        if "cuda" in saved and torch.cuda.is_available():
            torch.cuda.set_rng_state(saved["cuda"])
    except Exception as error:  # an unpickler raises anything
        raise CheckpointError(
            f"{path}: holds no random generator states ({error}). Use another checkpoint."
        ) from error


def derive(*, seed: int, step: int, rank: int) -> None:
    """Set all generators from these numbers, for a rank that has no file of its own.

    This happens when the world size has changed since the checkpoint was written.
    """
    word = xxhash.xxh64_intdigest(f"{seed}/{step}/{rank}".encode())
    random.seed(word)
    np.random.seed(word % 2**32)
    torch.manual_seed(word % 2**63)
