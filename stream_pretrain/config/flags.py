"""Parse a command line into values by key.

Flags are written `--a.b value`, `--a.b=value` or `--switch`. Lists and mappings are JSON, and a
list flag may be repeated to append an item. `-` and `_` are the same in names. The result includes
a fault for everything that cannot be parsed; the values are checked by `load_config`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stream_pretrain.config.faults import format_value, suggest_key
from stream_pretrain.config.fields import (
    find_field,
    flags_of,
    is_list,
    is_mapping,
    is_text,
    may_be_null,
    section_of,
    union_members,
)
from stream_pretrain.config.types import Section
from stream_pretrain.config.yaml import KeyPath, parse_scalar
from stream_pretrain.errors import Fault


@dataclass(frozen=True, kw_only=True)
class Flags:
    """A parsed command line: `values` of configuration keys, `options` of the command itself."""

    files: list[str] = field(default_factory=list)
    values: dict[KeyPath, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    print_config: bool = False
    help: bool = False


def parse_flags(argv: Sequence[str], model: type[Section], options: type[Section]) -> Flags:
    """Parse all arguments; one that cannot be parsed becomes a fault."""
    pairs = list(_pairs(argv, model, options))
    names = [name for name, _ in pairs]
    own = flags_of(options)
    flags = Flags(print_config="print_config" in names, help="help" in names)
    for name, text in pairs:
        if name in ("print_config", "help"):
            continue
        if name == "":
            flags.faults.append(
                Fault(
                    path="command line",
                    found=format_value(text),
                    remedy="not expected here; flags begin with --",
                )
            )
        elif text is None:
            flags.faults.append(Fault(path=f"--{name}", found="", remedy="needs a value"))
        elif name == "config":
            flags.files.append(text)
        elif name in own:
            _store(flags, flags.options, name, own[name], name, text)
        else:
            _store_key(flags, model, name, text)
    return flags


def _pairs(
    argv: Sequence[str], model: type[Section], options: type[Section]
) -> Iterator[tuple[str, str | None]]:
    """Yield (name, text) of each flag: text None for a missing value, name '' for a stray word."""
    words = list(argv)
    while words:
        word = words.pop(0)
        if word in ("-h", "--help"):
            yield "help", None
        elif not word.startswith("--") or word == "--":
            yield "", word
        else:
            name, equals, text = word[2:].partition("=")
            name = name.replace("-", "_")
            if equals:
                yield name, text
            elif name == "print_config":
                yield name, None
            elif words and not words[0].startswith("--"):
                yield name, words.pop(0)
            else:
                yield name, "true" if _is_switch(name, model, options) else None


def _is_switch(name: str, model: type[Section], options: type[Section]) -> bool:
    own = flags_of(options)
    annotation = own[name] if name in own else find_field(model, tuple(name.split(".")))
    return bool in union_members(annotation)


def _store_key(flags: Flags, model: type[Section], name: str, text: str) -> None:
    path = tuple(name.split("."))
    annotation = find_field(model, path)
    if annotation is None:
        hint = suggest_key(path, model, flag=True)
        flags.faults.append(Fault(path=f"--{name}", found="", remedy=f"no such flag{hint}"))
    else:
        _store(flags, flags.values, path, annotation, name, text)


def _store(
    flags: Flags, into: dict[Any, Any], key: Any, annotation: Any, name: str, text: str
) -> None:
    try:
        value = flag_value(annotation, text)
    except ValueError as error:
        flags.faults.append(Fault(path=f"--{name}", found=format_value(text), remedy=str(error)))
        return
    if is_list(annotation) and not text.startswith("[") and value is not None:
        value = [*into.get(key, []), value]
    into[key] = value


def flag_value(annotation: Any, text: str) -> Any:
    """Parse the text of a flag according to the annotation of its field.

    Raises:
        ValueError: the text is not valid JSON where JSON is needed.
    """
    if text == "null" and may_be_null(annotation):
        return None
    if is_text(annotation):
        return text
    if text.startswith(("[", "{")):
        return _json(text)
    if section_of(annotation) or is_mapping(annotation):
        raise ValueError(
            "must be a JSON mapping, such as '{\"key\": 1}', or use --section.key value"
        )
    return parse_scalar(text)


def _json(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise ValueError(f"not valid JSON ({error.msg} at character {error.pos + 1})") from error


def _refuse_constant(name: str) -> Mapping[str, Any]:
    raise ValueError(f"{name} is no JSON number")
