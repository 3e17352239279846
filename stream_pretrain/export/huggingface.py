"""Write a `TrainedModel` as a directory for `AutoModelForCausalLM.from_pretrained`.

It holds `config.json`, safetensors in shards with an index, the tokenizer and
`generation_config.json`. What Hugging Face cannot express is refused with the reason. The directory
appears only after transformers, loading it, gave the same logits and the same token ids. Nothing is
downloaded.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from stream_pretrain.errors import CheckpointError, ConfigError, Fault
from stream_pretrain.export.exported_tokenizer import ExportedTokenizer
from stream_pretrain.export.new_directory import new_directory
from stream_pretrain.export.parity import Parity, compare
from stream_pretrain.export.trained_model import TrainedModel
from stream_pretrain.model.hf_config import to_hugging_face
from stream_pretrain.model.hf_state_dict import to_hugging_face_tensors
from stream_pretrain.model.litgpt_model import PretrainGPT

SHARD_BYTES = 5_000_000_000
_SAMPLE_TEXT = "The quick brown fox, 12 jumps;\n\tnaïve café — 東京 🙂"


def export_huggingface(
    trained: TrainedModel, out: Path, *, shard_bytes: int = SHARD_BYTES
) -> Parity:
    """Write `out` and return how far transformers' logits were from ours.

    Raises:
        ConfigError: Hugging Face cannot express the model, or `out` holds something.
        CheckpointError: transformers' logits or token ids differ.
    """
    config = _config(trained)
    network = trained.network()
    with new_directory(out) as staging:
        _write_json(staging / "config.json", config)
        _write_json(staging / "generation_config.json", _generation(config))
        _write_weights(trained, network, config, staging, shard_bytes)
        for name, content in (trained.tokenizer.files if trained.tokenizer else {}).items():
            if name != "generation_config.json":
                (staging / name).write_bytes(content)
        if trained.tokenizer is not None:
            _check_tokenizer(staging, trained.tokenizer, location=str(out))
        return compare(trained, _HuggingFaceModel(staging), location=str(out))


def _config(trained: TrainedModel) -> dict[str, Any]:
    """Return `config.json`; `ConfigError` where Hugging Face cannot express the model."""
    dtype = str(trained.weights["lm_head.weight"].dtype).removeprefix("torch.")
    architecture = trained.architecture
    try:
        config = to_hugging_face(architecture.fields, tied=architecture.tied, dtype=dtype)
    except ValueError as error:
        name = architecture.fields["name"] or "this architecture"
        remedy = f"cannot express {name}: {error}. Use --format litgpt"
        raise ConfigError.of(
            [Fault(path="--format", found="huggingface", remedy=remedy)]
        ) from error
    tokenizer = trained.tokenizer
    return config | {
        "eos_token_id": None if tokenizer is None else tokenizer.eos_id,
        "bos_token_id": None if tokenizer is None else tokenizer.bos_id,
        "use_cache": True,
    }


def _generation(config: dict[str, Any]) -> dict[str, Any]:
    """Return sampling settings that suit a pretrained model, and its special tokens."""
    tokens = {
        key: config[key] for key in ("bos_token_id", "eos_token_id") if config[key] is not None
    }
    pad = {"pad_token_id": config["eos_token_id"]} if config["eos_token_id"] is not None else {}
    return {**tokens, **pad, "do_sample": True, "temperature": 0.8, "top_k": 50}


def _write_weights(
    trained: TrainedModel,
    network: PretrainGPT,
    config: dict[str, Any],
    staging: Path,
    shard_bytes: int,
) -> None:
    tensors = to_hugging_face_tensors(
        trained.weights, network.config, config["model_type"], tied=trained.architecture.tied
    )
    shards = list(_shards(tensors, shard_bytes))
    total = sum(t.numel() * t.element_size() for shard in shards for t in shard.values())
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        name = "model.safetensors"
        if len(shards) > 1:
            name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, staging / name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(shard, name)
    if len(shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        _write_json(staging / "model.safetensors.index.json", index)


def _shards(tensors: Iterator[tuple[str, Tensor]], limit: int) -> Iterator[dict[str, Tensor]]:
    """Group tensors to at most `limit` bytes; one that is larger is a group of its own."""
    shard: dict[str, Tensor] = {}
    size = 0
    for name, tensor in tensors:
        nbytes = tensor.numel() * tensor.element_size()
        if shard and size + nbytes > limit:
            yield shard
            shard, size = {}, 0
        shard[name] = tensor.contiguous()
        size += nbytes
    yield shard


class _HuggingFaceModel:
    """The model as transformers loads it from the directory, in float32, without the internet."""

    def __init__(self, directory: Path) -> None:
        model_class: Any = transformers().AutoModelForCausalLM
        self._model = model_class.from_pretrained(
            directory, local_files_only=True, dtype=torch.float32, attn_implementation="eager"
        ).eval()

    def __call__(self, ids_BT: Tensor) -> Tensor:
        logits: Tensor = self._model(ids_BT).logits
        return logits


def transformers() -> Any:
    """Import transformers, told beforehand not to use the internet."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    return importlib.import_module("transformers")


def _check_tokenizer(directory: Path, tokenizer: ExportedTokenizer, *, location: str) -> None:
    theirs = transformers().AutoTokenizer.from_pretrained(directory, local_files_only=True)
    ids = tokenizer.tokenizer().encode(_SAMPLE_TEXT).ids
    if theirs.encode(_SAMPLE_TEXT) != ids:
        raise CheckpointError(
            f"{location}: transformers' tokenizer gives other ids than tokenizer.json, so it was "
            "not written. Look for a tokenizer_class in tokenizer_config.json that changes them."
        )


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
