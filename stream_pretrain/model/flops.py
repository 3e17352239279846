"""Architecture -> floating point operations per token. In: a LitGPT `Config`. Out: a number. Does
not measure anything.

The usual count (PaLM, arXiv 2204.02311, appendix B): a multiply-add is two operations, the backward
pass costs twice the forward, so a matrix costs 6 per weight and token; attention scores and values
cost 12 L H Q T a token. Causality is not credited, recomputation (activation checkpointing) not
charged: this is what MFU divides by.
"""

from __future__ import annotations

from typing import Any


def flops_per_token(config: Any, *, active_matrix_parameters: float, seq_len: int) -> float:
    """Forward and backward operations for one token of a sequence of `seq_len`.

    `active_matrix_parameters`: weights that multiply this token: all but embeddings and norms, the
    head included, of a mixture only the experts that a token visits.
    """
    return 6.0 * active_matrix_parameters + attention_flops_per_token(config, seq_len=seq_len)


def attention_flops_per_token(config: Any, *, seq_len: int) -> float:
    """Scores and weighted values, forward and backward; a sliding window counts with its own
    length."""
    if config.latent_attention is not None:
        width = config.n_head * (config.qk_head_dim + config.v_head_dim) / 2
    else:
        width = config.n_head * config.head_size
    return 12.0 * float(width) * sum(_context_lengths(config, seq_len))


def _context_lengths(config: Any, seq_len: int) -> list[int]:
    window = config.sliding_window_size
    if window is None:
        return [seq_len] * config.n_layer
    slides = config.sliding_window_indices
    return [min(window, seq_len) if slides[layer] else seq_len for layer in range(config.n_layer)]
