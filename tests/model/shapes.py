"""LitGPT `Config` fields of tiny architectures, one or more of every Hugging Face family."""

from __future__ import annotations

from typing import Any

_SIZE = {
    "block_size": 64,
    "n_layer": 3,
    "n_embd": 32,
    "n_head": 4,
    "vocab_size": 257,
    "padded_vocab_size": 288,
}
_LLAMA = {
    **_SIZE,
    "rotary_percentage": 1.0,
    "parallel_residual": False,
    "bias": False,
    "norm_class_name": "RMSNorm",
    "mlp_class_name": "LLaMAMLP",
    "intermediate_size": 48,
}
_GEMMA = {
    **_LLAMA,
    "mlp_class_name": "GemmaMLP",
    "gelu_approximate": "tanh",
    "scale_embeddings": True,
}
_SANDWICH = {
    **_GEMMA,
    "post_attention_norm": True,
    "post_mlp_norm": True,
    "sliding_window_size": 5,
    "attention_scores_scalar": 12,
}

SHAPES: dict[str, dict[str, Any]] = {
    "gpt_neox": {**_SIZE},
    "gpt_neox sequential": {
        **_SIZE,
        "parallel_residual": False,
        "gelu_approximate": "tanh",
        "rotary_percentage": 0.5,
    },
    "llama": {**_LLAMA, "n_query_groups": 2, "rope_base": 500_000},
    "llama biases": {**_LLAMA, "bias": True},
    "llama llama3 scaling": {
        **_LLAMA,
        "rope_adjustments": {
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_seq_len": 32,
        },
    },
    "llama linear scaling": {**_LLAMA, "rope_condense_ratio": 2},
    "llama linear adjustment": {**_LLAMA, "rope_adjustments": {"factor": 2.0}},
    "mistral": {**_LLAMA, "sliding_window_size": 5},
    "qwen2": {**_LLAMA, "n_query_groups": 2, "attn_bias": True},
    "qwen3": {**_LLAMA, "n_query_groups": 2, "norm_qk": True, "head_size": 16},
    "gemma": {**_GEMMA, "name": "Gemma-tiny", "head_size": 16, "n_query_groups": 1},
    "gemma2": {
        **_SANDWICH,
        "name": "Gemma-2-tiny",
        "attention_logit_softcapping": 5.0,
        "final_logit_softcapping": 3.0,
        "sliding_window_indices": [1, 0, 1],
    },
    "gemma3_text": {
        **_SANDWICH,
        "name": "Gemma-3-tiny",
        "sliding_window_indices": [1, 1, 0],
        "rope_indices": [1, 1, 0],
        "rope_local_base_freq": 100,
        "norm_qk": True,
    },
}
"""Named after the Hugging Face model type that each becomes (its first word)."""
