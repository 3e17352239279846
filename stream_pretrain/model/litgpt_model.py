"""LitGPT's network with a loss, ready to train: the only module of `model` that imports LitGPT.

`PretrainGPT` is LitGPT's `GPT` (same submodules, same state-dict keys) whose `forward` also takes
targets and then returns sums of losses, so that DDP and FSDP2, which hook `forward`, see the whole
of it. It is a `LanguageModel` as `protocol` describes. Trains nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from litgpt.config import Config  # type: ignore[import-untyped]
from litgpt.model import (  # type: ignore[import-untyped]
    GPT,
    CausalSelfAttention,
    MultiheadLatentAttention,
    do_softcapping,
)
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from stream_pretrain.errors import ConfigError, Fault
from stream_pretrain.model.architecture import Architecture
from stream_pretrain.model.attention_mask import (
    AttentionMask,
    attention_mask,
    document_ids,
    document_positions,
    masked_attention,
)
from stream_pretrain.model.init_weights import initialize
from stream_pretrain.model.loss import LossSums, loss_sums
from stream_pretrain.model.pretrained_weights import load_pretrained_weights
from stream_pretrain.model.protocol import ForwardSettings


class _MaskedAttention:
    """Replace one method of LitGPT's attention, so that a mask may also be a `BlockMask`."""

    config: Any
    mscale: float

    def scaled_dot_product_attention(
        self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask = None
    ) -> Tensor:
        config = self.config
        width = config.head_size if config.latent_attention is None else config.qk_head_dim
        scale = (config.attention_scores_scalar or width) ** -0.5 * self.mscale**2
        out = masked_attention(
            q, k, v, mask, scale=scale, softcap=config.attention_logit_softcapping
        )
        return out.transpose(1, 2)


class _SelfAttention(_MaskedAttention, CausalSelfAttention):  # type: ignore[misc]
    def __init__(self, config: Any, block_idx: int) -> None:
        super().__init__(config, block_idx)
        # LitGPT would rebuild the window's mask in a Python loop over T in every layer, dropping
        # any other mask.
        sliding: Any = self
        self.slides = bool(sliding.apply_sliding_window_attention)
        sliding.apply_sliding_window_attention = False


class _LatentAttention(_MaskedAttention, MultiheadLatentAttention):  # type: ignore[misc]
    slides = False


class PretrainGPT(GPT):  # type: ignore[misc]
    """LitGPT's network with a loss.

    `model(ids)` returns logits [B, T, V], `model(ids, targets)` returns `LossSums`. `tied`:
    embedding and head are one parameter. `init_from`: directory of the first weights, None: they
    are drawn from the seed.
    """

    tied = False
    init_from: Path | None = None

    def __init__(self, config: Any, settings: ForwardSettings | None = None) -> None:
        super().__init__(config)
        self.settings = settings or ForwardSettings()
        attention = _SelfAttention if config.latent_attention is None else _LatentAttention
        for index, block in enumerate(self.transformer.h):
            block.attn = attention(config, index)

    def forward(self, ids_BT: Tensor, targets_BT: Tensor | None = None) -> Tensor | LossSums:
        hidden_BTD = self.hidden(ids_BT)
        if targets_BT is None:
            return self.logits(hidden_BTD)
        return loss_sums(
            hidden_BTD,
            self.logits,
            targets_BT,
            chunk=self.settings.loss_chunk,
            z_weight=self.settings.z_weight,
        )

    def blocks(self) -> Sequence[nn.Module]:
        """Return the transformer blocks: the units of sharding and compiling."""
        return list(self.transformer.h)

    def reset_buffers(self) -> None:
        """Compute the rotary tables and tie tied weights again, both of which `to_empty` loses."""
        self.cos, self.sin = self.rope_cache(device=self.lm_head.weight.device)
        if self.tied:
            tie_embeddings(self)

    def init_weights(self, *, seed: int) -> None:
        """Fill the weights, whole or sharded: drawn from the seed, or read from `init_from`."""
        initialize(self, seed=seed, width=self.config.n_embd, layers=self.config.n_layer)
        if self.init_from is not None:
            load_pretrained_weights(self, self.init_from, self.config)

    def logits(self, hidden: Tensor) -> Tensor:
        """Apply the head, and the architecture's cap where it has one."""
        logits: Tensor = self.lm_head(hidden)
        cap = self.config.final_logit_softcapping
        return logits if cap is None else do_softcapping(logits, cap)

    def hidden(self, ids_BT: Tensor) -> Tensor:
        """Compute everything before the head: [B, T, D]."""
        config = self.config
        cos, sin, mask, window_mask = self._geometry(ids_BT)
        x = self.transformer.wte(ids_BT)
        if config.scale_embeddings:
            x = x * torch.tensor(config.n_embd**0.5, dtype=x.dtype)
        recompute = self.settings.recompute_blocks and torch.is_grad_enabled()
        for index, block in enumerate(self.transformer.h):
            kind = slice(None) if config.rope_indices is None else config.rope_indices[index]
            rope = (cos[..., kind], sin[..., kind])
            arguments = (x, *rope, window_mask if block.attn.slides else mask)
            if recompute:
                x = checkpoint(block, *arguments, use_reentrant=False, preserve_rng_state=False)
            else:
                x = block(*arguments)
        hidden: Tensor = self.transformer.ln_f(x)
        return hidden

    def _geometry(self, ids_BT: Tensor) -> tuple[Tensor, Tensor, AttentionMask, AttentionMask]:
        """Return rotary tables for these tokens, the mask of full layers, and of sliding ones."""
        length = ids_BT.size(1)
        if length > self.max_seq_length:
            raise ValueError(f"ids must have at most {self.max_seq_length} positions, got {length}")
        eos_id = self.settings.document_eos_id
        documents_BT = None if eos_id is None else document_ids(ids_BT, eos_id)
        if documents_BT is None:
            cos, sin = self.cos[None, :length], self.sin[None, :length]
        else:
            positions_BT = document_positions(documents_BT)
            cos, sin = self.cos[positions_BT], self.sin[positions_BT]
        mask = attention_mask(length=length, device=ids_BT.device, documents_BT=documents_BT)
        window = self.config.sliding_window_size
        if window is None:
            return cos, sin, mask, mask
        window_mask = attention_mask(
            length=length, device=ids_BT.device, documents_BT=documents_BT, window=window
        )
        return cos, sin, mask, window_mask

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Keep the rotary tables in float32: 8 bits of mantissa cannot tell positions apart."""
        super()._apply(fn, recurse)
        if self.cos.dtype != torch.float32:
            self.reset_parameters()
        return self


def build_network(
    architecture: Architecture,
    *,
    seq_len: int | None = None,
    settings: ForwardSettings | None = None,
) -> PretrainGPT:
    """Return the network on the meta device: shapes without storage.

    `seq_len` bounds the rotary tables (None: the architecture's block size).

    Raises:
        ConfigError: `seq_len` is longer than the block size.
    """
    config = Config(**architecture.fields)
    if seq_len is not None and seq_len > config.block_size:
        remedy = f"sequences are {seq_len} long; set block_size to at least that"
        fault = Fault(path="model.config.block_size", found=str(config.block_size), remedy=remedy)
        raise ConfigError.of([fault])
    with torch.device("meta"):
        network = PretrainGPT(config, settings)
        if seq_len is not None:
            network.max_seq_length = seq_len
    network.tied = architecture.tied
    if architecture.tied:
        tie_embeddings(network)
    return network


def tie_embeddings(network: PretrainGPT) -> None:
    """Make the token embedding the head's weight: one parameter, whose first name is the head's."""
    network.transformer.wte.weight = network.lm_head.weight


def is_tied(network: nn.Module) -> bool:
    """Return whether embedding and head are one parameter."""
    head: Any = network.get_submodule("lm_head")
    embedding: Any = network.get_submodule("transformer.wte")
    return head.weight is embedding.weight
