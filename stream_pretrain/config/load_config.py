"""Load a configuration from files and flags, and check it.

Later files override earlier ones, and flags override files; mappings are merged, lists are
replaced. Any `Settings` model can be loaded, so that every command of both packages is configured
in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import ValidationError

from stream_pretrain.config.faults import faults_of
from stream_pretrain.config.fields import may_be_null, section_of
from stream_pretrain.config.flags import Flags, parse_flags
from stream_pretrain.config.options import NoOptions
from stream_pretrain.config.reference import help_text
from stream_pretrain.config.types import Section
from stream_pretrain.config.yaml import KeyPath, YamlDocument, dump_yaml, read_document
from stream_pretrain.errors import ConfigError, Fault

ModelT = TypeVar("ModelT", bound=Section)


@dataclass(frozen=True, kw_only=True)
class LoadedConfig(Generic[ModelT]):
    """A checked configuration, the command's own `options`, and the files and arguments read."""

    config: ModelT
    options: Section
    print_config: bool
    files: tuple[str, ...]
    argv: tuple[str, ...]

    def to_yaml(self) -> str:
        """Return the resolved configuration as YAML, which `--config` reads back unchanged."""
        return dump_config(self.config)


def load_config(
    argv: Sequence[str],
    *,
    model: type[ModelT],
    program: str,
    options: type[Section] = NoOptions,
) -> LoadedConfig[ModelT]:
    """Read `--config` files and flags.

    Raises:
        ConfigError: it lists every fault in flags, files, keys, values and their combinations.
        SystemExit: `--help` was given; all keys have been printed.
    """
    flags = parse_flags(argv, model, options)
    if flags.help:
        print(help_text(program, model, options), end="", flush=True)
        raise SystemExit(0)
    faults = list(flags.faults)
    raw, locations = _merge_sources(flags, faults)
    raw = _with_sections(model, raw)
    config = _validate(model, raw, locations, faults)
    chosen = _validate(options, flags.options, {}, faults, prefix="--")
    if faults or config is None or chosen is None:
        raise ConfigError.of(faults)
    return LoadedConfig(
        config=config,
        options=chosen,
        print_config=flags.print_config,
        files=tuple(flags.files),
        argv=tuple(argv),
    )


def config_of(model: type[ModelT], values: Mapping[str, Any]) -> ModelT:
    """Build a configuration from plain values, such as those of a script.

    Raises:
        ConfigError: it lists every fault.
    """
    faults: list[Fault] = []
    if not isinstance(values, Mapping):
        remedy = "must be a mapping of sections"
        raise ConfigError.of(
            [Fault(path="the configuration", found=repr(values)[:60], remedy=remedy)]
        )
    config = _validate(model, _with_sections(model, values), {}, faults)
    if config is None:
        raise ConfigError.of(faults)
    return config


def dump_config(config: Section) -> str:
    """Return a configuration with every key as YAML."""
    return dump_yaml(config.model_dump(mode="json"))


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge `over` into `base`: nested mappings are merged, all other values are replaced."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        both = isinstance(value, Mapping) and isinstance(below, Mapping)
        merged[key] = merge(below, value) if both and below is not None else value
    return merged


def _merge_sources(flags: Flags, faults: list[Fault]) -> tuple[dict[str, Any], dict[KeyPath, str]]:
    raw: dict[str, Any] = {}
    locations: dict[KeyPath, str] = {}
    for name in flags.files:
        document = _read(name, faults)
        raw = merge(raw, document.value or {})
        locations.update(document.locations)
    for path, value in flags.values.items():
        for part in reversed(path):
            value = {part: value}
        raw = merge(raw, value)
        locations = {key: at for key, at in locations.items() if key[: len(path)] != path}
    return raw, locations


def _read(name: str, faults: list[Fault]) -> YamlDocument:
    try:
        document = read_document(name)
    except ConfigError as error:
        faults.extend(error.faults)
        return YamlDocument(value={})
    if document.value is not None and not isinstance(document.value, Mapping):
        faults.append(
            Fault(path=name, found="", remedy="must hold sections, such as run: and data:")
        )
        return YamlDocument(value={})
    return document


def _with_sections(model: type[Section], raw: Mapping[str, Any]) -> dict[str, Any]:
    """Replace absent and empty sections by empty mappings, so that each missing key is reported."""
    filled = dict(raw)
    for name, info in model.model_fields.items():
        section = section_of(info.annotation)
        if section is None or may_be_null(info.annotation):
            continue
        value = filled.get(name)
        if value is None or isinstance(value, Mapping):
            filled[name] = _with_sections(section, value or {})
    return filled


def _validate(
    model: type[ModelT],
    raw: Mapping[str, Any],
    locations: Mapping[KeyPath, str],
    faults: list[Fault],
    prefix: str = "",
) -> ModelT | None:
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        for fault in faults_of(model, raw, error, locations):
            faults.append(
                Fault(path=f"{prefix}{fault.path}", found=fault.found, remedy=fault.remedy)
            )
        return None
