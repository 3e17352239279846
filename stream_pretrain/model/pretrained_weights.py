"""Load first weights from a LitGPT or Hugging Face checkpoint directory into a network.

Files are memory-mapped, not read whole: each rank reads only what it copies. Downloads nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from stream_pretrain.errors import ConfigError, Fault
from stream_pretrain.model.hf_state_dict import from_hugging_face_tensors
from stream_pretrain.model.init_weights import fill_parameter
from stream_pretrain.model.tied_embeddings import TIE_KEY

LITGPT_WEIGHTS = "lit_model.pth"
_TABLES = (".rotary_emb.inv_freq", ".attention.bias", ".attention.masked_bias")


@torch.no_grad()
def load_pretrained_weights(network: nn.Module, directory: Path, config: Any) -> None:
    """Copy every weight of `directory` into `network`, whole or sharded.

    Raises:
        ConfigError: names or shapes differ from the network's, or the directory has no weights.
    """
    targets = dict(network.state_dict(keep_vars=True))
    loaded = dict(_read_tensors(directory, list(targets), config))
    faults = [
        *(f"{name} is missing" for name in targets if name not in loaded),
        *(f"{name} is not part of this architecture" for name in loaded if name not in targets),
        *(
            f"{name} is {tuple(tensor.shape)}, must be {tuple(targets[name].shape)}"
            for name, tensor in loaded.items()
            if name in targets and tensor.shape != targets[name].shape
        ),
    ]
    head, embedding = "lm_head.weight", "transformer.wte.weight"
    shared = targets[head] is targets[embedding]
    if not faults and shared and not torch.equal(loaded[head], loaded[embedding]):
        faults.append(f"{head} and {embedding} differ, so they cannot be tied")
    if faults:
        more = f"; and {len(faults) - 3} more" if len(faults) > 3 else ""
        raise _refused(directory, "; ".join(faults[:3]) + more)
    for name, target in targets.items():
        fill_parameter(target, loaded[name])


def _read_tensors(directory: Path, names: list[str], config: Any) -> Iterator[tuple[str, Tensor]]:
    if (file := directory / LITGPT_WEIGHTS).is_file():
        yield from _litgpt_tensors(file).items()
        return
    if not (directory / "config.json").is_file():
        raise _refused(directory, f"it has neither {LITGPT_WEIGHTS} nor config.json")
    settings = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    weights = _HuggingFaceTensors(directory)
    gemma = settings["model_type"].startswith("gemma")
    tied = bool(settings.get(TIE_KEY, gemma))
    try:
        yield from from_hugging_face_tensors(
            names, weights, config, settings["model_type"], tied=tied
        )
    except KeyError as error:
        raise _refused(directory, f"it has no tensor {error}") from error
    if unused := weights.unused(tied=tied):
        raise _refused(directory, f"{unused[0]} is not part of this architecture")


def _litgpt_tensors(file: Path) -> Mapping[str, Tensor]:
    loaded = torch.load(file, mmap=True, map_location="cpu", weights_only=True)
    tensors: Mapping[str, Tensor] = loaded.get("model", loaded)
    return tensors


class _HuggingFaceTensors(Mapping[str, Tensor]):
    """The tensors of `model.safetensors`, or of its shards, by name; each is read on access."""

    def __init__(self, directory: Path) -> None:
        index = directory / "model.safetensors.index.json"
        single = directory / "model.safetensors"
        if index.is_file():
            file_names = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            self._files = {name: directory / file for name, file in file_names.items()}
        elif single.is_file():
            with safe_open(single, framework="pt") as opened:
                self._files = dict.fromkeys(opened.keys(), single)
        else:
            raise _refused(directory, "it has no model.safetensors, whole or in shards")

        self._used: set[str] = set()

    def unused(self, *, tied: bool) -> list[str]:
        """Return the names of tensors that were not read.

        Tables that older files carry, and a tied head's copy, do not count.
        """
        ignored = {name for name in self._files if name.endswith(_TABLES)}
        ignored |= {"lm_head.weight", "embed_out.weight"} if tied else set()
        return sorted(set(self._files) - self._used - ignored)

    def __getitem__(self, name: str) -> Tensor:
        self._used.add(name)
        with safe_open(self._files[name], framework="pt") as opened:
            tensor: Tensor = opened.get_tensor(name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def _refused(directory: Path, reason: str) -> ConfigError:
    remedy = f"{reason}. Choose a checkpoint of this architecture."
    return ConfigError.of([Fault(path="model.init_from", found=str(directory), remedy=remedy)])
