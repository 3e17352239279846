"""Translate between LitGPT `Config` fields and Hugging Face's `config.json`, both plain dicts.

A family (Hugging Face model type) is chosen by structure, not by name. Each lists the fields of
LitGPT's `Config` that its Hugging Face class can express; any other field must have the value that
means "absent", else the architecture is refused with the reason. What is read from a `config.json`
is translated back and compared, so that nothing is dropped silently. Loads no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from stream_pretrain.model import hf_config_fields, hf_rope

Fields = Mapping[str, Any]

ABSENT: Fields = {
    "norm_qk": False,
    "norm_qk_type": "default",
    "post_attention_norm": False,
    "post_mlp_norm": False,
    "parallel_residual": False,
    "shared_attention_norm": False,
    "attn_bias": False,
    "bias": False,
    "attention_scores_scalar": None,
    "sliding_window_size": None,
    "attention_logit_softcapping": None,
    "rotary_percentage": 1.0,
    "rope_interleave": False,
    "gelu_approximate": "none",
    "n_expert": 0,
    "first_k_dense_replace": None,
    "scale_embeddings": False,
    "lm_head_bias": False,
    "final_logit_softcapping": None,
    "norm_1": True,
    "norm_2": True,
    "latent_attention": None,
    "rope_local_base_freq": None,
}
"""Every field that adds something to a block, with the value at which it adds nothing."""


@dataclass(frozen=True, kw_only=True)
class HFFamily:
    """One Hugging Face model type.

    `required`: fields that must have exactly this value. `optional`: fields that may have any value
    (sizes always may). `write`: returns the keys of `config.json` beyond those of all families.
    `read`: returns LitGPT's fields for them. `unit_offset`: its norms multiply by 1 + weight.
    """

    model_type: str
    causal_lm: str
    required: Fields
    optional: tuple[str, ...] = ()
    write: Callable[[Fields], dict[str, Any]]
    read: Callable[[Fields], dict[str, Any]]
    unit_offset: bool = False


def find_family(fields: Fields) -> HFFamily:
    """Return the family whose blocks have this structure.

    Raises:
        ValueError: none has; the message lists why the nearest one does not fit.
    """
    reasons = {family.model_type: incompatibilities(family, fields) for family in FAMILIES}
    nearest = min(FAMILIES, key=lambda family: len(reasons[family.model_type]))
    if why := reasons[nearest.model_type]:
        raise ValueError(f"not even {nearest.model_type} can express it: {'; '.join(why)}")
    return nearest


def incompatibilities(family: HFFamily, fields: Fields) -> list[str]:
    """Return the reasons why `family` cannot express these fields; empty where it can."""
    reasons = [
        f"{key} is {fields[key]!r}, must be {value!r}"
        for key, value in family.required.items()
        if fields[key] != value
    ]
    reasons += [
        f"{key} is {fields[key]!r}, {family.model_type} has nothing like it"
        for key, value in ABSENT.items()
        if key not in family.required and key not in family.optional and fields[key] != value
    ]
    if family.unit_offset != ("Gemma" in fields["name"]):
        reasons.append(f"norms of a config named {fields['name']!r} are shaped otherwise")
    if reason := hf_rope.incompatibility(fields):
        reasons.append(reason)
    reasons += _shape_incompatibilities(family, fields)
    return reasons


def _shape_incompatibilities(family: HFFamily, fields: Fields) -> list[str]:
    reasons = []
    slides = (fields["sliding_window_indices"] or [])[: fields["n_layer"]]
    if family.model_type == "gpt_neox":
        if fields["n_query_groups"] not in (None, fields["n_head"]):
            reasons.append(f"n_query_groups is {fields['n_query_groups']}, must equal n_head")
        if fields["head_size"] not in (None, fields["n_embd"] // fields["n_head"]):
            reasons.append(f"head_size is {fields['head_size']}, must be n_embd / n_head")
    if family.model_type == "mistral" and (fields["sliding_window_size"] is None or 0 in slides):
        reasons.append("not every layer slides")
    if family.model_type == "gemma3_text" and (
        fields["sliding_window_size"] is None
        or fields["rope_local_base_freq"] is None
        or fields["rope_indices"] != fields["sliding_window_indices"]
    ):
        reasons.append("rope_local_base_freq must apply to exactly the layers that slide")
    if family.model_type == "gemma2" and fields["sliding_window_size"] is None:
        reasons.append("sliding_window_size is None, gemma2 always has sliding layers")
    if family.model_type == "llama" and fields["attn_bias"] and not fields["bias"]:
        reasons.append("attn_bias without bias, llama has all attention biases or none")
    return reasons


def to_hugging_face(fields: Fields, *, tied: bool, dtype: str) -> dict[str, Any]:
    """Return the content of `config.json` for these fields.

    Raises:
        ValueError: no family can express them; the message has the reasons.
    """
    family = find_family(fields)
    return {
        "architectures": [family.causal_lm],
        "model_type": family.model_type,
        "vocab_size": fields["padded_vocab_size"],
        "hidden_size": fields["n_embd"],
        "intermediate_size": fields["intermediate_size"],
        "num_hidden_layers": fields["n_layer"],
        "num_attention_heads": fields["n_head"],
        "max_position_embeddings": fields["block_size"],
        "tie_word_embeddings": tied,
        "torch_dtype": dtype,
        **family.write(fields),
    }


def from_hugging_face(config: Fields) -> dict[str, Any]:
    """Return the LitGPT `Config` fields for a `config.json`.

    Raises:
        ValueError: LitGPT cannot express it; the message has the reason.
    """
    known = {family.model_type: family for family in FAMILIES}
    family = known.get(str(config.get("model_type")))
    if family is None:
        raise ValueError(
            f"model_type is {config.get('model_type')!r}, must be one of {sorted(known)}"
        )
    for key in ("quantization_config", "use_sliding_window", "use_bidirectional_attention"):
        if config.get(key):
            raise ValueError(f"{key} is set, which LitGPT cannot express")
    fields: dict[str, Any] = {
        "name": _NAMES.get(family.model_type, family.model_type),
        "hf_config": {"tie_word_embeddings": _is_tied(config, family)},
        "vocab_size": config["vocab_size"],
        "padded_vocab_size": config["vocab_size"],
        "n_embd": config["hidden_size"],
        "intermediate_size": config["intermediate_size"],
        "n_layer": config["num_hidden_layers"],
        "n_head": config["num_attention_heads"],
        "block_size": config["max_position_embeddings"],
        **family.required,
        **family.read(config),
    }
    if changed := _changed_keys(config, fields):
        raise ValueError(f"LitGPT cannot express {'; '.join(changed)}")
    return fields


def _changed_keys(config: Fields, fields: Fields) -> list[str]:
    """Return the keys of a `config.json` that a translation to LitGPT and back changes."""
    unset = dict.fromkeys(_OPTIONAL) | {"rope_condense_ratio": 1}
    back = to_hugging_face({**ABSENT, **unset, **fields}, tied=False, dtype="float32")
    return [
        f"{key} = {config[key]!r} (would become {back[key]!r})"
        for key in back
        if key in config and key not in _NOT_COMPARED and config[key] not in (None, back[key])
    ]


_OPTIONAL = (
    "n_query_groups",
    "head_size",
    "sliding_window_indices",
    "rope_indices",
    "rope_adjustments",
)
_NOT_COMPARED = (
    "architectures",
    "model_type",
    "tie_word_embeddings",
    "torch_dtype",
    "hidden_act",
    "rope_scaling",
)
_NAMES = {"gemma": "Gemma", "gemma2": "Gemma-2", "gemma3_text": "Gemma-3"}


def _is_tied(config: Fields, family: HFFamily) -> bool:
    return bool(config.get("tie_word_embeddings", family.unit_offset))


_LLAMA_BLOCK = {"norm_class_name": "RMSNorm", "mlp_class_name": "LLaMAMLP", "bias": False}
_GEMMA_BLOCK = {
    "norm_class_name": "RMSNorm",
    "mlp_class_name": "GemmaMLP",
    "scale_embeddings": True,
    "gelu_approximate": "tanh",
}
_POST_NORMS = {"post_attention_norm": True, "post_mlp_norm": True}
_PLAIN = {"parallel_residual": False, "rotary_percentage": 1.0, "bias": False}

FAMILIES: tuple[HFFamily, ...] = (
    HFFamily(
        model_type="mistral",
        causal_lm="MistralForCausalLM",
        required={**_LLAMA_BLOCK, **_PLAIN},
        optional=("sliding_window_size",),
        write=hf_config_fields.write_mistral,
        read=hf_config_fields.read_mistral,
    ),
    HFFamily(
        model_type="llama",
        causal_lm="LlamaForCausalLM",
        required={"norm_class_name": "RMSNorm", "mlp_class_name": "LLaMAMLP"}
        | {"parallel_residual": False, "rotary_percentage": 1.0},
        optional=("bias", "attn_bias"),
        write=hf_config_fields.write_llama,
        read=hf_config_fields.read_llama,
    ),
    HFFamily(
        model_type="gpt_neox",
        causal_lm="GPTNeoXForCausalLM",
        required={"norm_class_name": "LayerNorm", "mlp_class_name": "GptNeoxMLP", "bias": True},
        optional=("parallel_residual", "rotary_percentage", "gelu_approximate", "attn_bias"),
        write=hf_config_fields.write_neox,
        read=hf_config_fields.read_neox,
    ),
    HFFamily(
        model_type="qwen2",
        causal_lm="Qwen2ForCausalLM",
        required={**_LLAMA_BLOCK, **_PLAIN, "attn_bias": True},
        write=hf_config_fields.write_llama,
        read=hf_config_fields.read_heads,
    ),
    HFFamily(
        model_type="qwen3",
        causal_lm="Qwen3ForCausalLM",
        required={**_LLAMA_BLOCK, **_PLAIN, "norm_qk": True},
        write=hf_config_fields.write_llama,
        read=hf_config_fields.read_heads,
    ),
    HFFamily(
        model_type="gemma",
        causal_lm="GemmaForCausalLM",
        required={**_GEMMA_BLOCK, **_PLAIN},
        write=hf_config_fields.write_gemma,
        read=hf_config_fields.read_gemma,
        unit_offset=True,
    ),
    HFFamily(
        model_type="gemma2",
        causal_lm="Gemma2ForCausalLM",
        required={**_GEMMA_BLOCK, **_PLAIN, **_POST_NORMS},
        optional=(
            "attention_scores_scalar",
            "sliding_window_size",
            "attention_logit_softcapping",
            "final_logit_softcapping",
        ),
        write=hf_config_fields.write_gemma2,
        read=hf_config_fields.read_gemma2,
        unit_offset=True,
    ),
    HFFamily(
        model_type="gemma3_text",
        causal_lm="Gemma3ForCausalLM",
        required={**_GEMMA_BLOCK, **_PLAIN, **_POST_NORMS, "norm_qk": True},
        optional=(
            "attention_scores_scalar",
            "sliding_window_size",
            "final_logit_softcapping",
            "rope_local_base_freq",
        ),
        write=hf_config_fields.write_gemma3,
        read=hf_config_fields.read_gemma3,
        unit_offset=True,
    ),
)
"""At most one fits. The message of a refusal names the nearest one, the first of several."""
