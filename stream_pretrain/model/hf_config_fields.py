"""Translate the keys of `config.json` that differ by family to LitGPT fields and back.

`write_*` takes complete LitGPT fields and returns keys of `config.json`; `read_*` does the reverse
and raises a `ValueError` for a value that LitGPT has no field for. `hf_config.FAMILIES` says which
functions belong to which model type.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stream_pretrain.model import hf_rope

Fields = Mapping[str, Any]


def write_neox(fields: Fields) -> dict[str, Any]:
    """Return the keys of `config.json` that GPT-NeoX has beyond those of all families."""
    return {
        "layer_norm_eps": fields["norm_eps"],
        "rotary_pct": fields["rotary_percentage"],
        "rotary_emb_base": fields["rope_base"],
        "rope_scaling": hf_rope.write_scaling(fields),
        "use_parallel_residual": fields["parallel_residual"],
        "attention_bias": True,
        "hidden_act": _ACTIVATIONS[fields["gelu_approximate"]],
    }


def read_neox(config: Fields) -> dict[str, Any]:
    """Return the LitGPT fields of GPT-NeoX beyond those that the family requires."""
    if not config.get("attention_bias", True):
        raise ValueError("attention_bias is false, which LitGPT's NeoX blocks cannot express")
    return {
        "norm_eps": config.get("layer_norm_eps", 1e-5),
        "rotary_percentage": config.get("rotary_pct", 0.25),
        "rope_base": hf_rope.base_of(config, config.get("rotary_emb_base", 10000)),
        "rope_adjustments": hf_rope.read_scaling(config),
        "parallel_residual": config.get("use_parallel_residual", True),
        "gelu_approximate": _approximation(config.get("hidden_act", "gelu")),
    }


def write_llama(fields: Fields) -> dict[str, Any]:
    """Return the keys of `config.json` that Llama has beyond those of all families."""
    return {
        "num_key_value_heads": fields["n_query_groups"] or fields["n_head"],
        "head_dim": fields["head_size"] or fields["n_embd"] // fields["n_head"],
        "rms_norm_eps": fields["norm_eps"],
        "rope_theta": fields["rope_base"],
        "rope_scaling": hf_rope.write_scaling(fields),
        "hidden_act": "silu",
        "attention_bias": fields["bias"] or fields["attn_bias"],
        "mlp_bias": fields["bias"],
    }


def read_llama(config: Fields) -> dict[str, Any]:
    """Return the LitGPT fields of Llama beyond those that the family requires."""
    if config.get("hidden_act", "silu") != "silu":
        raise ValueError(f"hidden_act is {config['hidden_act']!r}, must be 'silu'")
    bias = bool(config.get("attention_bias", False))
    if bias != bool(config.get("mlp_bias", False)) and config["model_type"] == "llama":
        raise ValueError("attention_bias and mlp_bias differ, which LitGPT cannot express")
    return {**read_heads(config), "bias": bias}


def read_heads(config: Fields) -> dict[str, Any]:
    """Return the LitGPT fields of heads, norms and rotary settings that Llama-like types share."""
    heads = config["num_attention_heads"]
    return {
        "n_query_groups": config.get("num_key_value_heads") or heads,
        "head_size": config.get("head_dim") or config["hidden_size"] // heads,
        "norm_eps": config.get("rms_norm_eps", 1e-6),
        "rope_base": hf_rope.base_of(config, 10000),
        "rope_adjustments": hf_rope.read_scaling(config),
    }


def write_mistral(fields: Fields) -> dict[str, Any]:
    """Return the keys of `config.json` that Mistral has beyond those of all families."""
    return {**write_llama(fields), "sliding_window": fields["sliding_window_size"]}


def read_mistral(config: Fields) -> dict[str, Any]:
    """Return the LitGPT fields of Mistral beyond those that the family requires."""
    return {**read_llama(config), "sliding_window_size": config.get("sliding_window")}


def write_gemma(fields: Fields) -> dict[str, Any]:
    """Return the keys of `config.json` that Gemma has beyond those of all families."""
    return {**write_llama(fields), "hidden_act": _TANH, "hidden_activation": _TANH}


def read_gemma(config: Fields) -> dict[str, Any]:
    """Return the LitGPT fields of Gemma beyond those that the family requires."""
    # Google's own files have "gelu" under the older key hidden_act, which the newer one overrides
    if config.get("hidden_activation") not in (None, _TANH):
        raise ValueError(f"hidden_activation is {config['hidden_activation']!r}, must be {_TANH!r}")
    return read_heads(config)


def write_gemma2(fields: Fields) -> dict[str, Any]:
    """Return the keys of `config.json` that Gemma 2 and 3 has beyond those of all families."""
    window = fields["sliding_window_indices"]
    kinds = ["sliding_attention" if slides else "full_attention" for slides in window]
    return {
        **write_gemma(fields),
        "query_pre_attn_scalar": fields["attention_scores_scalar"] or fields["head_size"],
        "sliding_window": fields["sliding_window_size"],
        "layer_types": kinds[: fields["n_layer"]],
        "attn_logit_softcapping": fields["attention_logit_softcapping"],
        "final_logit_softcapping": fields["final_logit_softcapping"],
    }


def read_gemma2(config: Fields) -> dict[str, Any]:
    """Return the LitGPT fields of Gemma 2 and 3 beyond those that the family requires."""
    layers = config["num_hidden_layers"]
    period = 2 if config["model_type"] == "gemma2" else config.get("sliding_window_pattern", 6)
    kinds = config.get("layer_types")
    slides = (
        [int((layer + 1) % period != 0) for layer in range(layers)]
        if kinds is None
        else [int(kind == "sliding_attention") for kind in kinds]
    )
    return {
        **read_gemma(config),
        "attention_scores_scalar": config.get("query_pre_attn_scalar", 256),
        "sliding_window_size": config.get("sliding_window", 4096),
        "sliding_window_indices": slides,
        "attention_logit_softcapping": config.get("attn_logit_softcapping"),
        "final_logit_softcapping": config.get("final_logit_softcapping"),
    }


def write_gemma3(fields: Fields) -> dict[str, Any]:
    """Return the keys of `config.json` that Gemma 3 has beyond those of all families."""
    return {**write_gemma2(fields), "rope_local_base_freq": fields["rope_local_base_freq"]}


def read_gemma3(config: Fields) -> dict[str, Any]:
    """Return the LitGPT fields of Gemma 3 beyond those that the family requires."""
    read = read_gemma2(config)
    return {
        **read,
        "rope_base": hf_rope.base_of(config, 1_000_000),
        "rope_local_base_freq": config.get("rope_local_base_freq", 10000.0),
        "rope_indices": read["sliding_window_indices"],
    }


_TANH = "gelu_pytorch_tanh"
_ACTIVATIONS = {"none": "gelu", "tanh": _TANH}


def _approximation(activation: str) -> str:
    known = {"gelu": "none", _TANH: "tanh", "gelu_new": "tanh"}
    if activation not in known:
        raise ValueError(f"hidden_act is {activation!r}, must be one of {sorted(known)}")
    return known[activation]
