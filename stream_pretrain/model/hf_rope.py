"""Rotary settings of LitGPT <-> those of Hugging Face. In: plain dicts. Out: plain dicts. Computes
no tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_LLAMA3 = {
    "factor": "factor",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    "original_max_seq_len": "original_max_position_embeddings",
}


def reason_against(fields: Mapping[str, Any]) -> str | None:
    """Why Hugging Face's llama3 and linear scaling cannot express these rotary settings."""
    adjustments = fields["rope_adjustments"]
    if adjustments and set(adjustments) not in ({"factor"}, set(_LLAMA3)):
        return f"rope_adjustments {sorted(adjustments)} are neither linear nor llama3 scaling"
    if adjustments and fields["rope_condense_ratio"] != 1:
        return "rope_condense_ratio beside rope_adjustments"
    return None


def write_scaling(fields: Mapping[str, Any]) -> dict[str, Any] | None:
    """`rope_scaling` for these fields."""
    adjustments = fields["rope_adjustments"]
    if fields["rope_condense_ratio"] != 1:
        return {"rope_type": "linear", "factor": float(fields["rope_condense_ratio"])}
    if not adjustments:
        return None
    if set(adjustments) == {"factor"}:
        return {"rope_type": "linear", "factor": adjustments["factor"]}
    return {"rope_type": "llama3"} | {_LLAMA3[key]: value for key, value in adjustments.items()}


def read_scaling(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """`rope_adjustments` for a `config.json`; `ValueError` for a kind of scaling that is not
    carried over."""
    scaling = config.get("rope_scaling") or config.get("rope_parameters")
    if not scaling:
        return None
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return None
    if kind == "linear":
        return {"factor": scaling["factor"]}
    if kind == "llama3":
        return {ours: scaling[theirs] for ours, theirs in _LLAMA3.items()}
    raise ValueError(f"rope_scaling is {kind!r}, must be linear or llama3")


def base_of(config: Mapping[str, Any], default: float) -> float:
    """The base frequency, where transformers 4 or 5 writes it; whole numbers as int, as LitGPT has
    them."""
    base = config.get(
        "rope_theta", (config.get("rope_parameters") or {}).get("rope_theta", default)
    )
    return int(base) if float(base).is_integer() else base
