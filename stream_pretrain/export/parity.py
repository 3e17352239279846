"""Compare the logits of an exported network with those of the trained one.

Both compute in float32 on the CPU on the same ids. The limit is relative to the spread of the
logits: float32 sums in another order differ by a few parts in a million, a wrong rotary base or a
missing bias by far more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from stream_pretrain.errors import CheckpointError
from stream_pretrain.export.trained_model import TrainedModel

LIMIT = 1e-3
_LENGTH = 48
_SAMPLES = 2


@dataclass(frozen=True, kw_only=True)
class Parity:
    """How far apart two networks are.

    `largest`: the largest difference of a logit. `relative`: that divided by the standard deviation
    of the logits.
    """

    largest: float
    relative: float


@torch.no_grad()
def compare(
    trained: TrainedModel, exported: Callable[[Tensor], Tensor], *, location: str
) -> Parity:
    """Compare the logits of `exported(ids)` with the trained network's.

    `location` names the exported directory in the message.

    Raises:
        CheckpointError: they differ by more than `LIMIT`.
    """
    ids_BT = sample_ids(trained)
    ours = trained.network()(ids_BT)
    theirs = exported(ids_BT).float()
    largest = (ours - theirs).abs().max().item()
    relative = largest / max(ours.std().item(), 1e-6)
    if not relative <= LIMIT:  # a NaN fails too
        raise CheckpointError(
            f"{location}: its logits differ from the checkpoint's by {largest:.3g} "
            f"({relative:.3g} of their spread, limit {LIMIT:g}), so it was not written. Report the "
            f"architecture of {trained.location}"
        )
    return Parity(largest=largest, relative=relative)


def sample_ids(trained: TrainedModel) -> Tensor:
    """Return the ids [2, T] that are compared, the same ones each time.

    They are longer than a sliding window where the context allows.
    """
    fields = trained.architecture.fields
    window = fields["sliding_window_size"] or 0
    length = min(fields["block_size"], max(_LENGTH, min(window + 16, 1024)))
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, fields["vocab_size"], (_SAMPLES, length), generator=generator)
