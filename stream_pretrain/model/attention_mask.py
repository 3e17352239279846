"""Masks and positions for attention, and attention under such masks.

Documents: an end-of-text id opens the next document. It is the first token of what follows it, at
position 0, so every target stays in use: the last token of a document predicts end-of-text, and
end-of-text predicts the next document's first token without having seen another document. (It is
also what a prompt-less generation starts from.)

Masks: `None` means plain causal attention (the fast kernels), a bool tensor [B or 1, 1, T, T] is
True where attention is allowed, a `BlockMask` is for flex attention.

Axes: B samples, H heads, T positions (queries), S positions (keys).
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

AttentionMask = Tensor | BlockMask | None


def document_ids(ids_BT: Tensor, eos_id: int) -> Tensor:
    """Return the number of each token's document within its sample, from 0: [B, T] int64."""
    return (ids_BT == eos_id).long().cumsum(1)


def document_positions(documents_BT: Tensor) -> Tensor:
    """Return the position of each token within its document: [B, T] int64."""
    index_T = torch.arange(documents_BT.size(1), device=documents_BT.device)
    opens = torch.ones_like(documents_BT, dtype=torch.bool)
    opens[:, 1:] = documents_BT[:, 1:] != documents_BT[:, :-1]
    return index_T - torch.where(opens, index_T, 0).cummax(1).values


def attention_mask(
    *,
    length: int,
    device: torch.device,
    documents_BT: Tensor | None = None,
    window: int | None = None,
) -> AttentionMask:
    """Return a causal mask, within documents and at most `window` positions back where given.

    `documents_BT` are document numbers as `document_ids` returns them.
    """
    if documents_BT is None and (window is None or window >= length):
        return None
    if device.type == "cuda":
        return _block_mask(length, device, documents_BT, window)
    query_T1 = torch.arange(length, device=device)[:, None]
    key_S = torch.arange(length, device=device)[None, :]
    allowed = key_S <= query_T1
    if window is not None:
        allowed = allowed & (key_S > query_T1 - window)
    allowed = allowed[None, None]
    if documents_BT is not None:
        same = documents_BT[:, None, :, None] == documents_BT[:, None, None, :]
        allowed = allowed & same
    return allowed


def _block_mask(
    length: int, device: torch.device, documents_BT: Tensor | None, window: int | None
) -> BlockMask:
    def allowed(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:  # noqa: ARG001
        inside = q >= k
        if window is not None:
            inside = inside & (q - k < window)
        if documents_BT is not None:
            inside = inside & (documents_BT[b, q] == documents_BT[b, k])
        return inside

    batch = None if documents_BT is None else documents_BT.size(0)
    return create_block_mask(allowed, batch, None, length, length, device=device)


def masked_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: AttentionMask,
    *,
    scale: float,
    softcap: float | None,
) -> Tensor:
    """Compute softmax attention over [B, H, T, width] tensors.

    `softcap` bounds the scores: `cap * tanh(score / cap)`.
    """
    if isinstance(mask, BlockMask):
        return _flex(query, key, value, mask, scale=scale, softcap=softcap)
    if softcap is None:
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, scale=scale, is_causal=mask is None
        )
    if mask is None:
        length = query.size(2)
        mask = torch.ones(length, length, dtype=torch.bool, device=query.device).tril()
    scores = softcap * torch.tanh(query @ key.mT * scale / softcap)
    scores = scores.masked_fill(~mask, -math.inf)
    return functional.softmax(scores, dim=-1, dtype=torch.float32).to(value.dtype) @ value


def _flex(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: BlockMask,
    *,
    scale: float,
    softcap: float | None,
) -> Tensor:
    def capped(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:  # noqa: ARG001
        assert softcap is not None
        return softcap * torch.tanh(score / softcap)

    # uncompiled, flex attention computes every score; a compiled block compiles it too
    kernel: Any = flex_attention if torch.compiler.is_compiling() else _compiled_flex()
    score_mod = None if softcap is None else capped
    out: Tensor = kernel(query, key, value, block_mask=mask, score_mod=score_mod, scale=scale)
    return out


@cache
def _compiled_flex() -> Any:
    return torch.compile(flex_attention)
