"""`TrainedModel` -> a directory for `AutoModelForCausalLM.from_pretrained`. In: weights. Out: a
Hugging Face directory.

`config.json`, safetensors in shards with an index, the tokenizer, `generation_config.json`. What
Hugging Face cannot express is refused with the reason. The directory appears only after
transformers, loading it, gave the same logits and the same token ids. Nothing is fetched.
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
    """Write `out`, or raise; how far transformers' logits were from ours."""
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
            _check_tokenizer(staging, trained.tokenizer, where=str(out))
        return compare(trained, _Loaded(staging), where=str(out))


def _config(trained: TrainedModel) -> dict[str, Any]:
    dtype = str(trained.dtype()).removeprefix("torch.")
    try:
        config = to_hugging_face(
            trained.architecture.fields, tied=trained.architecture.tied, dtype=dtype
        )
    except ValueError as error:
        name = trained.architecture.fields["name"] or "this architecture"
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
    """Sampling that suits a pretrained model; its tokens."""
    ends = {key: config[key] for key in ("bos_token_id", "eos_token_id") if config[key] is not None}
    pad = {"pad_token_id": config["eos_token_id"]} if config["eos_token_id"] is not None else {}
    return {**ends, **pad, "do_sample": True, "temperature": 0.8, "top_k": 50}


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
    where: dict[str, str] = {}
    for place, shard in enumerate(shards, start=1):
        name = "model.safetensors"
        if len(shards) > 1:
            name = f"model-{place:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, staging / name, metadata={"format": "pt"})
        where |= dict.fromkeys(shard, name)
    if len(shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": where}
        _write_json(staging / "model.safetensors.index.json", index)


def _shards(tensors: Iterator[tuple[str, Tensor]], limit: int) -> Iterator[dict[str, Tensor]]:
    """Tensors in groups of at most `limit` bytes; one that is larger is a group of its own."""
    shard: dict[str, Tensor] = {}
    size = 0
    for name, tensor in tensors:
        bytes_more = tensor.numel() * tensor.element_size()
        if shard and size + bytes_more > limit:
            yield shard
            shard, size = {}, 0
        shard[name] = tensor.contiguous()
        size += bytes_more
    yield shard


class _Loaded:
    """The directory as transformers loads it, in float32, without a network."""

    def __init__(self, directory: Path) -> None:
        model_class: Any = transformers().AutoModelForCausalLM
        self._model = model_class.from_pretrained(
            directory, local_files_only=True, dtype=torch.float32, attn_implementation="eager"
        ).eval()

    def __call__(self, ids_BT: Tensor) -> Tensor:
        logits: Tensor = self._model(ids_BT).logits
        return logits


def transformers() -> Any:
    """The library, told before its import never to look anything up."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    return importlib.import_module("transformers")


def _check_tokenizer(directory: Path, tokenizer: ExportedTokenizer, *, where: str) -> None:
    theirs = transformers().AutoTokenizer.from_pretrained(directory, local_files_only=True)
    ids = tokenizer.tokenizer().encode(_SAMPLE_TEXT).ids
    if theirs.encode(_SAMPLE_TEXT) != ids:
        raise CheckpointError(
            f"{where}: transformers' tokenizer gives other ids than tokenizer.json, so it was not "
            "written. Look for a tokenizer_class in tokenizer_config.json that changes them."
        )


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
