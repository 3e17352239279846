"""Resolve the `model` section to every field of a LitGPT `Config`, without torch.

The section names a LitGPT config, gives fields, or names a checkpoint directory. LitGPT's package
costs seconds to import, its `config.py` alone a few milliseconds, so that file is loaded by its
path.
"""

from __future__ import annotations

import difflib
import importlib.util
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import yaml  # type: ignore[import-untyped]

from stream_pretrain.errors import ConfigError, Fault
from stream_pretrain.model.hf_config import from_hugging_face
from stream_pretrain.model.tied_embeddings import is_tied_by_architecture, with_tie_recorded

if TYPE_CHECKING:
    from stream_pretrain.config.sections import ModelConfig


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A complete LitGPT `Config`.

    `fields`: every field of it. `tied`: embedding and head are one matrix.
    """

    fields: Mapping[str, Any]
    tied: bool

    def to_yaml(self) -> str:
        """Return LitGPT's `model_config.yaml`, with whether weights are tied in its `hf_config`."""
        return str(yaml.safe_dump(with_tie_recorded(self.fields, tied=self.tied), sort_keys=True))

    @classmethod
    def from_yaml(cls, text: str | bytes) -> Architecture:
        """Read a `model_config.yaml`, ours or LitGPT's own."""
        return _complete_fields(None, dict(yaml.safe_load(text)), tie=None, path="model.init_from")


def resolve(model: ModelConfig) -> Architecture:
    """Return the architecture that the section describes.

    That is `name`, `config` (whose fields replace the name's) or, without both, the directory
    `init_from`.

    Raises:
        ConfigError: an unknown name or field, or fields that contradict one another.
    """
    if model.name is None and model.config is None and model.init_from is not None:
        given = fields_in(Path(model.init_from))
        return _complete_fields(None, given, tie=model.tie_embeddings, path="model.init_from")
    return _complete_fields(model.name, dict(model.config or {}), tie=model.tie_embeddings)


def fields_in(directory: Path) -> dict[str, Any]:
    """Return the `Config` fields of a checkpoint directory.

    It is LitGPT's (`model_config.yaml`) or Hugging Face's (`config.json`).

    Raises:
        ConfigError: neither file is there, or it cannot be used.
    """
    ours, theirs = directory / "model_config.yaml", directory / "config.json"
    try:
        if ours.is_file():
            return dict(yaml.safe_load(ours.read_text(encoding="utf-8")))
        if theirs.is_file():
            return from_hugging_face(json.loads(theirs.read_text(encoding="utf-8")))
    except (ValueError, TypeError, KeyError, yaml.YAMLError) as error:
        file = ours if ours.is_file() else theirs
        remedy = f"{file.name} cannot be used: {error}; choose another checkpoint"
        raise _refused("model.init_from", str(directory), remedy) from error
    remedy = "must be a directory with model_config.yaml (LitGPT) or config.json (Hugging Face)"
    raise _refused("model.init_from", str(directory), remedy)


def _complete_fields(
    name: str | None, given: dict[str, Any], *, tie: bool | None, path: str = "model.config"
) -> Architecture:
    module = _litgpt_config()
    unknown = sorted(set(given) - {field.name for field in fields(module.Config)})
    if unknown:
        raise ConfigError.of([_unknown_field(path, key, given[key]) for key in unknown])
    try:
        if name is None:
            config = module.Config(**given)
        else:
            config = module.Config.from_name(_known_name(name), **given)
    except (AssertionError, ValueError, TypeError, ZeroDivisionError) as error:
        detail = str(error) or "n_embd, n_head, n_query_groups or the experts do not go together"
        raise _refused(path, repr(given), f"LitGPT refuses it: {detail}") from error
    complete = asdict(config)
    tied = is_tied_by_architecture(complete) if tie is None else tie
    if tied and complete["lm_head_bias"]:
        remedy = "must be false: a head with a bias is not an embedding"
        raise _refused("model.tie_embeddings", "true", remedy)
    return Architecture(fields=complete, tied=tied)


def _refused(path: str, found: str, remedy: str) -> ConfigError:
    return ConfigError.of([Fault(path=path, found=found, remedy=remedy)])


def known_names() -> list[str]:
    """Return every LitGPT name that `model.name` may have, sorted.

    These are LitGPT's own names and, with a slash, Hugging Face's.
    """
    module = _litgpt_config()
    names = set(module.name_to_config)
    for entry in module.configs:
        repository = entry["hf_config"]
        names |= {repository["name"], f"{repository['org']}/{repository['name']}"}
    return sorted(names)


def _known_name(name: str) -> str:
    names = known_names()
    if name in names:
        return name
    close = difflib.get_close_matches(name, names, n=3)
    hint = (
        f"did you mean {' or '.join(close)}?"
        if close
        else "it is no LitGPT config; see litgpt download list"
    )
    raise _refused("model.name", repr(name), hint)


def _unknown_field(path: str, key: str, value: object) -> Fault:
    names = [field.name for field in fields(_litgpt_config().Config)]
    close = difflib.get_close_matches(key, names, n=1)
    hint = f"did you mean {path}.{close[0]}?" if close else "LitGPT's Config has no such field"
    return Fault(path=f"{path}.{key}", found=repr(value), remedy=hint)


@cache
def _litgpt_config() -> ModuleType:
    """Return LitGPT's `config.py`, loaded by path under a name of this package."""
    if "litgpt.config" in sys.modules:
        return sys.modules["litgpt.config"]
    package = importlib.util.find_spec("litgpt")
    assert package is not None and package.submodule_search_locations
    path = Path(package.submodule_search_locations[0]) / "config.py"
    spec = importlib.util.spec_from_file_location("stream_pretrain_litgpt_config", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
