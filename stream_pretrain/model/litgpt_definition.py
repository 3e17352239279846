"""LitGPT's architectures as the trainer sees them: the first `ModelDefinition`.

Also counts floating point operations per token, in the usual way (PaLM, arXiv 2204.02311, appendix
B): a multiply-add is two operations and the backward pass costs twice the forward, so a matrix
costs 6 per weight and token; attention scores and values cost 12 L H Q T per token. Causality is
not credited and recomputation (activation checkpointing) is not charged: MFU divides by this.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stream_pretrain.model.architecture import Architecture, resolve
from stream_pretrain.model.litgpt_model import PretrainGPT, build_network, is_tied
from stream_pretrain.model.protocol import SETTINGS, ForwardSettings
from stream_pretrain.schema import ModelFacts

if TYPE_CHECKING:
    from stream_pretrain.config.sections import ModelConfig


class LitGPTDefinition:
    """A LitGPT `Config` and, for continued pretraining, the directory of the first weights."""

    supports = SETTINGS

    def __init__(self, architecture: Architecture, *, init_from: Path | None = None) -> None:
        self.architecture = architecture
        self._init_from = init_from

    @classmethod
    def of(cls, model: ModelConfig) -> LitGPTDefinition:
        """Return the definition that `name`, `config` or `init_from` of the section stand for.

        Raises:
            ConfigError: an unknown name or field, or fields that contradict one another.
        """
        init_from = None if model.init_from is None else Path(model.init_from)
        return cls(resolve(model), init_from=init_from)

    def build(self, settings: ForwardSettings, *, seq_len: int | None = None) -> PretrainGPT:
        """Return the network on the meta device; `seq_len` bounds its rotary tables."""
        network = build_network(self.architecture, seq_len=seq_len, settings=settings)
        network.init_from = self._init_from
        return network

    def facts(self, *, seq_len: int | None = None) -> ModelFacts:
        """Return the sizes of the network; takes no memory for weights."""
        network = build_network(self.architecture)
        config = network.config
        parameters = sum(p.numel() for p in network.parameters())
        embeddings = network.transformer.wte.weight.numel()
        head = 0 if is_tied(network) else network.lm_head.weight.numel()
        matrices = sum(_active_parameters(network).values())
        attention = _attention_flops_per_token(config, seq_len=seq_len or config.block_size)
        return ModelFacts(
            name=config.name or "custom",
            vocab_size=config.vocab_size,
            padded_vocab_size=config.padded_vocab_size,
            block_size=config.block_size,
            parameters=parameters,
            parameters_without_embeddings=parameters - embeddings - head,
            layers=config.n_layer,
            flops_per_token=6.0 * matrices + attention,
        )


def _active_parameters(network: PretrainGPT) -> Mapping[str, float]:
    """Return the number of matrix weights that one token meets, by name.

    Embedding lookups do not count, and of a mixture's experts only those that a token visits.
    """
    config = network.config
    share = config.n_expert_per_token / config.n_expert if config.n_expert else 1.0
    counts = {"lm_head.weight": float(network.lm_head.weight.numel())}
    for name, parameter in network.transformer.h.named_parameters():
        if parameter.ndim == 2:
            counts[name] = parameter.numel() * (share if ".experts." in name else 1.0)
    return counts


def _attention_flops_per_token(config: Any, *, seq_len: int) -> float:
    """Return the operations of scores and weighted values, forward and backward.

    A layer with a sliding window counts with the window's length.
    """
    if config.latent_attention is not None:
        width = config.n_head * (config.qk_head_dim + config.v_head_dim) / 2
    else:
        width = config.n_head * config.head_size
    return 12.0 * float(width) * sum(_context_lengths(config, seq_len))


def _context_lengths(config: Any, seq_len: int) -> list[int]:
    """Return the number of positions that each layer attends to."""
    window = config.sliding_window_size
    if window is None:
        return [seq_len] * config.n_layer
    slides = config.sliding_window_indices
    return [min(window, seq_len) if slides[layer] else seq_len for layer in range(config.n_layer)]
