"""Translate rotary settings between LitGPT and Hugging Face; both are plain dicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_LLAMA3 = {
    "factor": "factor",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    "original_max_seq_len": "original_max_position_embeddings",
}


def incompatibility(fields: Mapping[str, Any]) -> str | None:
    """Return why Hugging Face's llama3 or linear scaling cannot express these settings, or None."""
    adjustments = fields["rope_adjustments"]
    if adjustments and set(adjustments) not in ({"factor"}, set(_LLAMA3)):
        return f"rope_adjustments {sorted(adjustments)} are neither linear nor llama3 scaling"
    if adjustments and fields["rope_condense_ratio"] != 1:
        return "rope_condense_ratio beside rope_adjustments"
    return None


def write_scaling(fields: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return `rope_scaling` for these LitGPT fields."""
    adjustments = fields["rope_adjustments"]
    if fields["rope_condense_ratio"] != 1:
        return {"rope_type": "linear", "factor": float(fields["rope_condense_ratio"])}
    if not adjustments:
        return None
    if set(adjustments) == {"factor"}:
        return {"rope_type": "linear", "factor": adjustments["factor"]}
    return {"rope_type": "llama3"} | {_LLAMA3[key]: value for key, value in adjustments.items()}


def read_scaling(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return LitGPT's `rope_adjustments` for a `config.json`.

    Raises:
        ValueError: the kind of scaling is neither linear nor llama3.
    """
    scaling = config.get("rope_scaling") or config.get("rope_parameters")
    if not scaling:
        return None
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return None
    if kind == "linear":
        return {"factor": scaling["factor"]}
    if kind == "llama3":
        return {litgpt: scaling[hugging_face] for litgpt, hugging_face in _LLAMA3.items()}
    raise ValueError(f"rope_scaling is {kind!r}, must be linear or llama3")


def base_of(config: Mapping[str, Any], default: float) -> float:
    """Return the base frequency, from where transformers 4 or 5 writes it.

    Whole numbers are returned as int, as LitGPT has them.
    """
    base = config.get(
        "rope_theta", (config.get("rope_parameters") or {}).get("rope_theta", default)
    )
    return int(base) if float(base).is_integer() else base
