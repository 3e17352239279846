"""Loss on fixed validation sets. In: a model, holdouts. Out: loss, perplexity, bits per byte by
set. Changes nothing.

Every rank evaluates its own share of the same samples, as many batches as every other rank, and
sums are added over ranks: the samples do not depend on the topology.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from stream_pretrain.data.validation_set import ValidationSet
from stream_pretrain.model.loss import IGNORED_TARGET, token_loss

if TYPE_CHECKING:
    from lightning.fabric import Fabric


def evaluate(
    fabric: Fabric, model: nn.Module, validation_sets: Mapping[str, ValidationSet]
) -> dict[str, dict[str, float]]:
    """For each named set: `loss` (nats per token), `perplexity`, `tokens` and, where the card
    knows, `bits_per_byte`.
    """
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            return {
                name: _evaluate_one(fabric, model, held) for name, held in validation_sets.items()
            }
    finally:
        model.train(was_training)


def _evaluate_one(fabric: Fabric, model: Any, held: ValidationSet) -> dict[str, float]:
    total = torch.zeros(2, dtype=torch.float64, device=fabric.device)
    for ids, counted in held.batches():
        ids = ids.to(fabric.device, non_blocking=True).long()
        targets = ids[:, 1:].clone()
        targets[counted:] = IGNORED_TARGET
        sums = token_loss(model, ids[:, :-1], targets)
        total += torch.stack([sums.loss_sum.double(), sums.tokens.double()])
    if fabric.world_size > 1:
        total = fabric.all_reduce(total, reduce_op="sum")  # type: ignore[assignment]
    loss_sum, tokens = total.tolist()
    loss = loss_sum / tokens
    result = {
        "loss": loss,
        "perplexity": math.exp(loss) if loss < 700 else math.inf,
        "tokens": tokens,
    }
    if held.tokens_per_byte is not None:
        result["bits_per_byte"] = loss / math.log(2) * held.tokens_per_byte
    return result
