"""Rename and split state-dict tensors between LitGPT and Hugging Face.

Most tensors only change their name. LitGPT stacks queries, keys and values in one matrix, [q of all
heads, k, v]; Llama-like types keep three; NeoX keeps one, ordered head by head: [q0, k0, v0, q1,
...]. Reads no file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

_LLAMA = {
    "lm_head": "lm_head",
    "transformer.wte": "model.embed_tokens",
    "transformer.ln_f": "model.norm",
    "norm_1": "input_layernorm",
    "norm_2": "post_attention_layernorm",
    "attn.proj": "self_attn.o_proj",
    "attn.norm_q": "self_attn.q_norm",
    "attn.norm_k": "self_attn.k_norm",
    "mlp.fc_1": "mlp.gate_proj",
    "mlp.fc_2": "mlp.up_proj",
    "mlp.proj": "mlp.down_proj",
}
_LLAMA_WITH_POST_NORMS = {
    **_LLAMA,
    "post_attention_norm": "post_attention_layernorm",
    "norm_2": "pre_feedforward_layernorm",
    "post_mlp_norm": "post_feedforward_layernorm",
}
_NEOX = {
    "lm_head": "embed_out",
    "transformer.wte": "gpt_neox.embed_in",
    "transformer.ln_f": "gpt_neox.final_layer_norm",
    "norm_1": "input_layernorm",
    "norm_2": "post_attention_layernorm",
    "attn.qkv": "attention.query_key_value",
    "attn.proj": "attention.dense",
    "mlp.fc": "mlp.dense_h_to_4h",
    "mlp.proj": "mlp.dense_4h_to_h",
}
_SEPARATE = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_BLOCK = re.compile(r"transformer\.h\.(\d+)\.(.+)\.(weight|bias)")


def hugging_face_parts(name: str, model_type: str) -> list[str]:
    """Return the Hugging Face names of one LitGPT tensor.

    There is one, or three for queries, keys and values.
    """
    table, layers = _table(model_type)
    block = _BLOCK.fullmatch(name)
    if block is None:
        module, _, kind = name.rpartition(".")
        return [f"{table[module]}.{kind}"]
    layer, module, kind = block.groups()
    modules = [table[module]] if module in table else list(_SEPARATE)
    return [f"{layers}.{layer}.{part}.{kind}" for part in modules]


def to_hugging_face_tensors(
    weights: Mapping[str, Tensor], config: Any, model_type: str, *, tied: bool
) -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor under its Hugging Face name; a tied head is left out."""
    for name, tensor in weights.items():
        if tied and name == "lm_head.weight":
            continue
        targets = hugging_face_parts(name, model_type)
        if ".attn.qkv." not in name:
            yield targets[0], tensor
        elif len(targets) == 1:
            yield targets[0], _by_head(tensor, config)
        else:
            yield from zip(targets, torch.split(tensor, _qkv_rows(config)), strict=True)


def from_hugging_face_tensors(
    names: list[str], weights: Mapping[str, Tensor], config: Any, model_type: str, *, tied: bool
) -> Iterator[tuple[str, Tensor]]:
    """Yield the LitGPT tensors called `names`, made of Hugging Face's.

    Raises:
        KeyError: a Hugging Face tensor is missing.
    """
    for name in names:
        source = "transformer.wte.weight" if tied and name == "lm_head.weight" else name
        parts = [weights[part] for part in hugging_face_parts(source, model_type)]
        if ".attn.qkv." in name and len(parts) == 1:
            yield name, _by_kind(parts[0], config)
        else:
            yield name, parts[0] if len(parts) == 1 else torch.cat(parts)


def _table(model_type: str) -> tuple[dict[str, str], str]:
    if model_type == "gpt_neox":
        return _NEOX, "gpt_neox.layers"
    return _LLAMA_WITH_POST_NORMS if model_type in (
        "gemma2",
        "gemma3_text",
    ) else _LLAMA, "model.layers"


def _qkv_rows(config: Any) -> list[int]:
    groups = config.n_query_groups * config.head_size
    return [config.n_head * config.head_size, groups, groups]


def _by_head(stacked: Tensor, config: Any) -> Tensor:
    """Reorder rows of a matrix or a bias: [q of all heads, k, v] to [q0, k0, v0, q1, ...]."""
    shape = (3, config.n_head, config.head_size, *stacked.shape[1:])
    return stacked.reshape(shape).transpose(0, 1).reshape(stacked.shape)


def _by_kind(interleaved: Tensor, config: Any) -> Tensor:
    """Reorder rows of a matrix or a bias: [q0, k0, v0, q1, ...] to [q of all heads, k, v]."""
    shape = (config.n_head, 3, config.head_size, *interleaved.shape[1:])
    return interleaved.reshape(shape).transpose(0, 1).reshape(interleaved.shape)
