"""`model.name` or `model.config` -> every field of a LitGPT `Config`. In: a name, fields. Out: a
plain dict. No torch.

LitGPT's package costs seconds to import, its `config.py` alone a few milliseconds, so that file is
loaded by its path.
"""

from __future__ import annotations

import difflib
import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from stream_pretrain.errors import ConfigError, Fault


def architecture(name: str | None, config: Mapping[str, Any] | None) -> dict[str, Any]:
    """All fields of the LitGPT `Config` that `name`, `config` or both (fields override the name's)
    stand for.

    Raises `ConfigError` for an unknown name or field, and for fields that contradict one another.
    """
    given = dict(config or {})
    module = _litgpt_config()
    unknown = sorted(set(given) - {field.name for field in fields(module.Config)})
    if unknown:
        raise ConfigError.of([_unknown_field(key, given[key]) for key in unknown])
    try:
        if name is None:
            return _as_plain(module.Config(**given))
        return _as_plain(module.Config.from_name(_known_name(name), **given))
    except (AssertionError, ValueError, TypeError, ZeroDivisionError) as error:
        detail = (
            str(error)
            or "the fields contradict one another (n_embd, n_head, n_query_groups, experts)"
        )
        fault = Fault(path="model.config", found=repr(given), remedy=f"LitGPT refuses it: {detail}")
        raise ConfigError.of([fault]) from error


def known_names() -> list[str]:
    """Every name that `model.name` may have: LitGPT's own and, with a slash, Hugging Face's,
    sorted."""
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
    raise ConfigError.of([Fault(path="model.name", found=repr(name), remedy=hint)])


def _unknown_field(key: str, value: object) -> Fault:
    names = [field.name for field in fields(_litgpt_config().Config)]
    close = difflib.get_close_matches(key, names, n=1)
    hint = (
        f"did you mean model.config.{close[0]}?" if close else "LitGPT's Config has no such field"
    )
    return Fault(path=f"model.config.{key}", found=repr(value), remedy=hint)


def _as_plain(config: Any) -> dict[str, Any]:
    return asdict(config)


@cache
def _litgpt_config() -> ModuleType:
    """LitGPT's `config.py`, loaded by path under a name of our own."""
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
