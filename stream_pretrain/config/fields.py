"""List the fields of a configuration model by dotted path, and describe_type their types in words.

The functions take a `Section` class or the annotation of a field; they read no values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BeforeValidator, PlainValidator
from pydantic.fields import FieldInfo

from stream_pretrain.config.types import Section, TrainingDuration, parse_training_duration
from stream_pretrain.units import parse_bytes, parse_count, parse_duration

_PARSED_TYPES: Mapping[Any, str] = {
    parse_count: "count",
    parse_bytes: "size",
    parse_duration: "duration",
    parse_training_duration: "steps, tokens or fraction",
}
_PLAIN_TYPES: Mapping[Any, str] = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true or false",
}


@dataclass(frozen=True, kw_only=True)
class Key:
    """One key of a configuration.

    `type` is in words, `default` as it is written in YAML (None if the key is required).
    """

    path: str
    type: str
    default: Any
    required: bool
    doc: str


def union_members(annotation: Any) -> list[Any]:
    """Return the alternatives of an annotation, without `Annotated` around them."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return union_members(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return [member for part in get_args(annotation) for member in union_members(part)]
    return [annotation]


def section_of(annotation: Any) -> type[Section] | None:
    """Return the Section that a field holds, or None."""
    sections = [
        m for m in union_members(annotation) if isinstance(m, type) and issubclass(m, Section)
    ]
    return sections[0] if sections else None


def item_of(annotation: Any) -> Any:
    """Return the annotation of a list's items, or None if it is not a list of one type."""
    for member in union_members(annotation):
        if (
            get_origin(member) is tuple
            and len(get_args(member)) == 2
            and get_args(member)[1] is ...
        ):
            return get_args(member)[0]
    return None


def is_list(annotation: Any) -> bool:
    """Return whether a field is a list of any kind, pairs included."""
    return any(get_origin(member) is tuple for member in union_members(annotation))


def is_mapping(annotation: Any) -> bool:
    """Return whether a field is a mapping with arbitrary keys."""
    return any(
        isinstance(o := get_origin(m), type) and issubclass(o, Mapping)
        for m in union_members(annotation)
    )


def is_text(annotation: Any) -> bool:
    """Return whether a field accepts any text, so that `123` must not become a number."""
    return [member for member in union_members(annotation) if member is not NoneType] == [str]


def may_be_null(annotation: Any) -> bool:
    """Return whether a field accepts null."""
    return NoneType in union_members(annotation)


def find_field(model: type[Section], path: tuple[str, ...]) -> Any:
    """Return the annotation at a path, or None if there is no such key.

    Inside a mapping with arbitrary keys it is `Any`.
    """
    if not path or path[0] not in model.model_fields:
        return None
    annotation = model.model_fields[path[0]].annotation
    if len(path) == 1:
        return annotation
    if is_mapping(annotation):
        return Any
    section = section_of(annotation)
    return find_field(section, path[1:]) if section else None


def flags_of(options: type[Section]) -> dict[str, Any]:
    """Return the annotations of a command's own flags, by the name that is typed."""
    return {info.alias or name: info.annotation for name, info in options.model_fields.items()}


def find_section(model: type[Section], path: tuple[str, ...]) -> type[Section] | None:
    """Return the section at a path (`data.train.0` is a stream), or None."""
    if not path:
        return model
    info = model.model_fields.get(path[0])
    if info is None:
        return None
    item = section_of(item_of(info.annotation))
    if item and len(path) > 1:
        return find_section(item, path[2:])
    section = section_of(info.annotation)
    return find_section(section, path[1:]) if section else None


def keys_of(model: type[Section], prefix: str = "") -> Iterator[Key]:
    """Yield all keys that hold values, those of nested sections included.

    Keys of sections in a list have paths such as `data.train[].remote`.
    """
    for name, info in model.model_fields.items():
        path = f"{prefix}{info.alias or name}"
        section = section_of(info.annotation)
        if section and not may_be_null(info.annotation):
            yield from keys_of(section, f"{path}.")
            continue
        yield Key(
            path=path,
            type=describe_type(info),
            default=yaml_default(info),
            required=info.is_required(),
            doc=" ".join((info.description or "").split()),
        )
        item = section_of(item_of(info.annotation))
        if item:
            yield from keys_of(item, f"{path}[].")


def yaml_default(info: FieldInfo) -> Any:
    """Return the default of a field as it is written in YAML."""
    default = info.get_default(call_default_factory=True)
    if info.is_required():
        return None
    if isinstance(default, TrainingDuration):
        return default.to_yaml()
    return list(default) if isinstance(default, tuple) else default


def describe_type(info: FieldInfo) -> str:
    """Describe the type of a field in words: `count or null`, `ddp, fsdp2 or hsdp`."""
    for item in info.metadata:
        if kind := _parsed_type(item):
            return kind
    return _type_text(info.annotation)


def _parsed_type(metadata: Any) -> str | None:
    if isinstance(metadata, BeforeValidator | PlainValidator):
        return _PARSED_TYPES.get(metadata.func)
    return None


def _type_text(annotation: Any) -> str:
    origin = get_origin(annotation)
    if origin is Annotated:
        base, *metadata = get_args(annotation)
        return next((kind for item in metadata if (kind := _parsed_type(item))), _type_text(base))
    if origin in (Union, UnionType):
        return _join_with_or(
            [word for part in get_args(annotation) for word in _alternatives(part)]
        )
    if origin is Literal:
        return _join_with_or(_alternatives(annotation))
    if origin is tuple:
        parts = get_args(annotation)
        return (
            f"list of {_type_text(parts[0])}"
            if parts[1] is ...
            else f"list of {len(parts)} numbers"
        )
    if section_of(annotation):
        return "mapping"
    if is_mapping(annotation):
        return "mapping"
    return "null" if annotation is NoneType else _PLAIN_TYPES.get(annotation, "any value")


def _alternatives(annotation: Any) -> list[str]:
    if get_origin(annotation) is Literal:
        return [str(choice) for choice in get_args(annotation)]
    return [_type_text(annotation)]


def _join_with_or(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
