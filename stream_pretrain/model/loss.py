"""Compute sums of token losses from hidden states [B, T, D], a head and targets [B, T].

A mean of means is wrong as soon as two micro-batches count different numbers of tokens, so
everything here is a sum and a count. The trainer adds the sums of a step over micro-batches and
ranks and divides once.

Axes: B samples, T positions, N = B x T tokens, D width, V padded vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

IGNORED_TARGET = -100
"""A target with this id enters neither the sums nor the count."""

Head = Callable[[Tensor], Tensor]


class LossSums(NamedTuple):
    """Sums of one micro-batch. Only `objective` carries a gradient.

    `objective`: cross entropy plus z-loss, summed over tokens: what to differentiate. `loss_sum`:
    cross entropy alone, in nats, summed: what to report. `tokens`: how many targets were counted
    (int64). `sample_losses`, `sample_tokens`: the same by sample, from which a mixture's losses per
    stream are made.
    """

    objective: Tensor
    loss_sum: Tensor
    tokens: Tensor
    sample_losses: Tensor
    sample_tokens: Tensor


def token_loss(model: Callable[..., LossSums], inputs_BT: Tensor, targets_BT: Tensor) -> LossSums:
    """Return the sums for one micro-batch, through the model's own `forward`.

    DDP and FSDP2 hook `forward`. `model` is what `build_model` returned, or that set up by Fabric.
    """
    return model(inputs_BT, targets_BT)


def loss_by_stream(sums: LossSums, stream_B: Tensor, streams: int) -> tuple[Tensor, Tensor]:
    """Return loss sums [streams] (float64) and token counts [streams] (int64).

    `stream_B` holds each sample's stream index.
    """
    loss_S = torch.zeros(streams, dtype=torch.float64, device=sums.sample_losses.device)
    tokens_S = torch.zeros(streams, dtype=torch.int64, device=sums.sample_losses.device)
    stream_B = stream_B.to(loss_S.device)
    return (
        loss_S.index_add(0, stream_B, sums.sample_losses.double()),
        tokens_S.index_add(0, stream_B, sums.sample_tokens),
    )


def loss_sums(
    hidden_BTD: Tensor, head: Head, targets_BT: Tensor, *, chunk: int = 0, z_weight: float = 0.0
) -> LossSums:
    """Return the cross entropy of `head(hidden)`, `chunk` tokens at a time (0: all at once).

    Chunked, the logits of one chunk exist at a time, forward and backward: they are computed again
    in the backward pass. `z_weight` adds `z_weight * logsumexp(logits)^2` per token to the
    objective (PaLM, arXiv 2204.02311, §5).
    """
    hidden_ND, targets_N = hidden_BTD.flatten(0, 1), targets_BT.flatten()
    length = chunk or targets_N.numel()
    recompute = length < targets_N.numel() and torch.is_grad_enabled()
    losses, objectives = [], []
    for hidden, targets in zip(
        torch.split(hidden_ND, length), torch.split(targets_N, length), strict=True
    ):
        if recompute:
            loss, objective = checkpoint(
                _chunk_loss,
                hidden,
                head,
                targets,
                z_weight,
                use_reentrant=False,
                preserve_rng_state=False,
            )
        else:
            loss, objective = _chunk_loss(hidden, head, targets, z_weight)
        losses.append(loss)
        objectives.append(objective)
    loss_B = torch.cat(losses).view_as(targets_BT).sum(1)
    tokens_B = (targets_BT != IGNORED_TARGET).sum(1)
    return LossSums(
        objective=torch.cat(objectives).view_as(targets_BT).sum(1).sum(),
        loss_sum=loss_B.detach().sum(),
        tokens=tokens_B.sum(),
        sample_losses=loss_B.detach(),
        sample_tokens=tokens_B,
    )


def _chunk_loss(
    hidden: Tensor, head: Head, targets: Tensor, z_weight: float
) -> tuple[Tensor, Tensor]:
    """Return cross entropy and objective of one chunk by token: two tensors [N], float32."""
    logits = head(hidden).float()
    loss = functional.cross_entropy(logits, targets, reduction="none", ignore_index=IGNORED_TARGET)
    if not z_weight:
        return loss, loss
    counted = targets != IGNORED_TARGET
    return loss, loss + logits.logsumexp(-1).square() * counted * z_weight
