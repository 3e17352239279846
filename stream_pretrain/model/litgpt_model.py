"""`ModelConfig` -> a LitGPT network ready to train. In: the config, a seed. Out: `PretrainGPT`,
`ModelFacts`. No training.

`PretrainGPT` is LitGPT's `GPT` (same submodules, same state-dict keys) whose `forward` also takes
targets and then returns sums of losses, so that DDP and FSDP2, which hook `forward`, see the whole
of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from stream_pretrain.model.architecture import Architecture, resolve
from stream_pretrain.model.attention_mask import (
    AttentionMask,
    attend,
    attention_mask,
    documents_of,
    positions_of,
)
from stream_pretrain.model.flops import flops_per_token
from stream_pretrain.model.init_weights import initialise
from stream_pretrain.model.loss import LossSums, loss_sums
from stream_pretrain.model.pretrained_weights import fill_from
from stream_pretrain.schema import ModelFacts

if TYPE_CHECKING:
    from stream_pretrain.config.sections import ComputeConfig, LossConfig, ModelConfig


@dataclass(frozen=True, kw_only=True)
class ForwardSettings:
    """How a forward pass is computed. None of it is part of the weights.

    `loss_chunk`: tokens of a micro-batch whose logits exist at once (0: all). `z_weight`: of the
    z-loss. `document_eos_id`: keep documents apart, opened by this id (None: do not).
    `recompute_blocks`: activation checkpointing by block.
    """

    loss_chunk: int = 0
    z_weight: float = 0.0
    document_eos_id: int | None = None
    recompute_blocks: bool = False

    @classmethod
    def of(
        cls, *, model: ModelConfig, loss: LossConfig, compute: ComputeConfig, eos_id: int | None
    ) -> ForwardSettings:
        """What the configuration asks for; `eos_id` is the dataset's end-of-text, None where it has
        none."""
        if faults := check_document_mask(model, eos_id):
            raise ConfigError.of(faults)
        return cls(
            loss_chunk=loss.chunk,
            z_weight=loss.z_loss,
            document_eos_id=eos_id if model.document_mask else None,
            recompute_blocks=compute.activation_checkpointing,
        )


def check_document_mask(model: ModelConfig, eos_id: int | None) -> list[Fault]:
    """A document mask without an end-of-text id would have no effect; needs no model."""
    if not model.document_mask or eos_id is not None:
        return []
    remedy = (
        "the data names no end-of-text token, so documents cannot be told apart; "
        "convert it with one, or leave this out"
    )
    return [Fault(path="model.document_mask", found="true", remedy=remedy)]


class _MaskedScores:
    """Attention whose mask may also be a bool tensor or a `BlockMask`; one method of LitGPT's
    classes, replaced."""

    config: Any
    mscale: float

    def scaled_dot_product_attention(
        self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask = None
    ) -> Tensor:
        config = self.config
        width = config.head_size if config.latent_attention is None else config.qk_head_dim
        scale = (config.attention_scores_scalar or width) ** -0.5 * self.mscale**2
        out = attend(q, k, v, mask, scale=scale, softcap=config.attention_logit_softcapping)
        return out.transpose(1, 2)


class _Attention(_MaskedScores, CausalSelfAttention):  # type: ignore[misc]
    def __init__(self, config: Any, block_idx: int) -> None:
        super().__init__(config, block_idx)
        # LitGPT would rebuild the window's mask in a Python loop over T in every layer, dropping
        # any other mask.
        sliding: Any = self
        self.slides = bool(sliding.apply_sliding_window_attention)
        sliding.apply_sliding_window_attention = False


class _LatentAttention(_MaskedScores, MultiheadLatentAttention):  # type: ignore[misc]
    slides = False


class PretrainGPT(GPT):  # type: ignore[misc]
    """LitGPT's network with a loss. `model(ids)` -> logits [B, T, V]; `model(ids, targets)` ->
    `LossSums`."""

    def __init__(self, config: Any, settings: ForwardSettings | None = None) -> None:
        super().__init__(config)
        self.settings = settings or ForwardSettings()
        attention = _Attention if config.latent_attention is None else _LatentAttention
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

    def logits(self, hidden: Tensor) -> Tensor:
        """The head with the architecture's cap, if it has one."""
        logits: Tensor = self.lm_head(hidden)
        cap = self.config.final_logit_softcapping
        return logits if cap is None else do_softcapping(logits, cap)

    def hidden(self, ids_BT: Tensor) -> Tensor:
        """Everything before the head: [B, T, D]."""
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
        """Rotary tables for these tokens, the mask of a full layer, and the mask of a sliding
        one."""
        length = ids_BT.size(1)
        if length > self.max_seq_length:
            raise ValueError(f"ids must have at most {self.max_seq_length} positions, got {length}")
        eos_id = self.settings.document_eos_id
        documents_BT = None if eos_id is None else documents_of(ids_BT, eos_id)
        if documents_BT is None:
            cos, sin = self.cos[None, :length], self.sin[None, :length]
        else:
            positions_BT = positions_of(documents_BT)
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
        """`.to(bfloat16)` must not round the rotary tables: 8 bits of mantissa cannot tell
        positions apart."""
        super()._apply(fn, recurse)
        if self.cos.dtype != torch.float32:
            self.reset_parameters()
        return self


def build_model(
    model: ModelConfig,
    *,
    seed: int,
    seq_len: int | None = None,
    settings: ForwardSettings | None = None,
    device: torch.device | str = "cpu",
    fill: bool = True,
) -> PretrainGPT:
    """The network with its first weights: drawn from the seed, or read from `model.init_from`.

    On the meta device, without: call `materialise` when it is where it trains. `fill` False:
    storage without values, for a checkpoint to be loaded into. `seq_len` bounds the rotary tables
    (default: the architecture's block size).
    """
    network = build_network(resolve(model), seq_len=seq_len, settings=settings)
    network.init_from = None if model.init_from is None else Path(model.init_from)
    if torch.device(device).type != "meta":
        network.to_empty(device=device)
        materialise(network, seed=seed, fill=fill)
    return network


def build_network(
    architecture: Architecture,
    *,
    seq_len: int | None = None,
    settings: ForwardSettings | None = None,
) -> PretrainGPT:
    """The network on the meta device: shapes without storage."""
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


def materialise(
    network: PretrainGPT, *, seed: int, tied: bool | None = None, fill: bool = True
) -> None:
    """Give a network whose storage exists (`to_empty`, or Fabric's setup of a meta model) its first
    weights.

    `to_empty` unties tied parameters, so they are tied again here. `tied` None: as the architecture
    says.
    """
    network.cos, network.sin = network.rope_cache(device=network.lm_head.weight.device)
    if network.tied if tied is None else tied:
        tie_embeddings(network)
    if fill:
        init_weights_in_place(network, seed=seed)


def init_weights_in_place(network: PretrainGPT, *, seed: int) -> None:
    """First weights for storage that exists, whole or sharded: drawn from the seed, or read from
    `init_from`."""
    initialise(network, seed=seed, width=network.config.n_embd, layers=network.config.n_layer)
    if network.init_from is not None:
        fill_from(network, network.init_from, network.config)


def tie_embeddings(network: PretrainGPT) -> None:
    """Make the token embedding the head's weight: one parameter, named first as the head's."""
    network.transformer.wte.weight = network.lm_head.weight


def is_tied(network: nn.Module) -> bool:
    """True where embedding and head are one parameter."""
    head: Any = network.get_submodule("lm_head")
    embedding: Any = network.get_submodule("transformer.wte")
    return head.weight is embedding.weight


def model_facts(model: ModelConfig, *, seq_len: int | None = None) -> ModelFacts:
    """Sizes of the network that `build_model` would make; no memory for weights is taken."""
    network = build_network(resolve(model))
    config = network.config
    parameters = sum(p.numel() for p in network.parameters())
    embeddings = network.transformer.wte.weight.numel()
    head = 0 if is_tied(network) else network.lm_head.weight.numel()
    active = sum(_active_parameters(network).values())
    return ModelFacts(
        name=config.name or "custom",
        vocab_size=config.vocab_size,
        padded_vocab_size=config.padded_vocab_size,
        block_size=config.block_size,
        parameters=parameters,
        parameters_without_embeddings=parameters - embeddings - head,
        layers=config.n_layer,
        flops_per_token=flops_per_token(
            config, active_matrix_parameters=active, seq_len=seq_len or config.block_size
        ),
    )


def _active_parameters(network: PretrainGPT) -> Mapping[str, float]:
    """Matrix weights that one token meets, by name: no embedding lookup, and of the experts its own
    few."""
    config = network.config
    share = config.n_expert_per_token / config.n_expert if config.n_expert else 1.0
    counts = {"lm_head.weight": float(network.lm_head.weight.numel())}
    for name, parameter in network.transformer.h.named_parameters():
        if parameter.ndim == 2:
            counts[name] = parameter.numel() * (share if ".experts." in name else 1.0)
    return counts


def model_config_yaml(network: PretrainGPT) -> str:
    """The text of LitGPT's `model_config.yaml` for this network."""
    return Architecture(fields=asdict(network.config), tied=network.tied).to_yaml()
