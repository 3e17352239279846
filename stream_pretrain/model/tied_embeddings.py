"""Which published architectures share one matrix between embedding and head.

LitGPT's `Config` has no such field. A `model_config.yaml` that this project writes records it in
the free-form `hf_config`, as Hugging Face's `tie_word_embeddings`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

TIE_KEY = "tie_word_embeddings"

_TIED = re.compile(
    r"(Code)?Gemma-.*"
    r"|Llama-3\.2-[13]B(-Instruct)?"
    r"|Qwen2\.5-(Coder-|Math-)?(0\.5|1\.5|3)B(-Instruct)?"
    r"|Qwen3-(0\.6|1\.7|4)B(-.*)?"
    r"|SmolLM2-.*"
    r"|OLMo-1B-hf"
    r"|Phi-4-mini-.*"
    r"|falcon-(7b|40b|180B)(-.*)?",
)


def is_tied_by_architecture(fields: Mapping[str, Any]) -> bool:
    """Return whether the architecture was published with one matrix, or was recorded so."""
    recorded = (fields.get("hf_config") or {}).get(TIE_KEY)
    if recorded is not None:
        return bool(recorded)
    return _TIED.fullmatch(fields["name"]) is not None


def with_tie_recorded(fields: Mapping[str, Any], *, tied: bool) -> dict[str, Any]:
    """Return the fields with `tied` written into `hf_config`."""
    return {**fields, "hf_config": {**(fields.get("hf_config") or {}), TIE_KEY: tied}}
