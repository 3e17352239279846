"""Hidden states -> sums of token losses. In: hidden [B, T, D], a head, targets [B, T]. Out:
`LossSums`. Never a mean.

A mean of means is wrong as soon as two micro-batches count different numbers of tokens, so
everything here is a sum and a count; who has all sums of a step (over micro-batches and ranks)
divides once.

Axes: B samples, T positions, D width, V padded vocabulary.
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
    """The sums for one micro-batch, through the model's own `forward`, so that DDP and FSDP2 see
    it.

    `model` is what `build_model` returned, bare or set up by Fabric.
    """
    return model(inputs_BT, targets_BT)


def loss_by_stream(sums: LossSums, stream_B: Tensor, streams: int) -> tuple[Tensor, Tensor]:
    """Loss sums [streams] (float64) and token counts [streams] (int64); `stream_B` holds each
    sample's stream index."""
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
    """Cross entropy of `head(hidden)` against the targets, `chunk` positions at a time (0: all at
    once).

    Chunked, the logits of one chunk exist at a time, forward and backward: they are computed again
    in the backward pass. `z_weight` adds `z_weight * logsumexp(logits)^2` per token to the
    objective (PaLM, arXiv 2204.02311, §5).
    """
    step = chunk or targets_BT.size(1)
    pieces = zip(
        torch.split(hidden_BTD, step, dim=1), torch.split(targets_BT, step, dim=1), strict=True
    )
    recompute = step < targets_BT.size(1) and torch.is_grad_enabled()
    losses_B = []
    extras_B = []
    for hidden, targets in pieces:
        if recompute:
            loss, extra = checkpoint(
                _piece,
                hidden,
                head,
                targets,
                z_weight,
                use_reentrant=False,
                preserve_rng_state=False,
            )
        else:
            loss, extra = _piece(hidden, head, targets, z_weight)
        losses_B.append(loss)
        extras_B.append(extra)
    loss_B = torch.stack(losses_B).sum(0)
    extra_B = torch.stack(extras_B).sum(0)
    tokens_B = (targets_BT != IGNORED_TARGET).sum(1)
    return LossSums(
        objective=(loss_B + extra_B).sum(),
        loss_sum=loss_B.detach().sum(),
        tokens=tokens_B.sum(),
        sample_losses=loss_B.detach(),
        sample_tokens=tokens_B,
    )


def _piece(hidden: Tensor, head: Head, targets: Tensor, z_weight: float) -> tuple[Tensor, Tensor]:
    """Cross entropy and z-loss of one chunk, summed by sample: two tensors [B], float32."""
    logits = head(hidden).float()
    loss = functional.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), reduction="none", ignore_index=IGNORED_TARGET
    )
    loss_B = loss.view_as(targets).sum(1)
    if not z_weight:
        return loss_B, torch.zeros_like(loss_B)
    counted = targets != IGNORED_TARGET
    extra_B = (logits.logsumexp(-1).square() * counted).sum(1) * z_weight
    return loss_B, extra_B
