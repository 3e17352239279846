"""Turn validation errors of a configuration into faults with a key, a value and a remedy.

All faults are collected: those of single values, which pydantic reports, and those of the checks
between keys, which also run on the valid fields of a configuration that has invalid ones.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from stream_pretrain.config.fields import (
    describe_type,
    find_section,
    is_list,
    item_of,
    keys_of,
    section_of,
)
from stream_pretrain.config.types import FaultsError, Section, Settings
from stream_pretrain.config.yaml import KeyPath
from stream_pretrain.errors import Fault
from stream_pretrain.redaction import hide_url_secrets

_LONGEST = 60


def faults_of(
    model: type[Section],
    raw: Mapping[str, Any],
    error: ValidationError,
    locations: Mapping[KeyPath, str],
) -> list[Fault]:
    """Return every fault of `raw`: those of single values, then those of checks between keys.

    `locations` has the file and line of each key.
    """
    by_path: dict[str, Fault] = {}
    for details in error.errors(include_url=False):
        if isinstance(details.get("ctx", {}).get("error"), FaultsError):
            continue
        fault = _value_fault(model, details, locations)
        by_path.setdefault(fault.path, fault)
    parents = [path for path in by_path if any(key.startswith(f"{path}.") for key in by_path)]
    for path in parents:
        del by_path[path]
    return [*by_path.values(), *_check_faults(model, raw, locations)]


def suggest_key(path: Sequence[str], model: type[Section], *, flag: bool = False) -> str:
    """Return `; did you mean optimizer.lr?`, or an empty string if no key is similar."""
    *parents, last = path
    section = find_section(model, tuple(parents))
    siblings = list(section.model_fields) if section else []
    near = [
        ".".join((*parents, name))
        for name in difflib.get_close_matches(last, siblings, n=1, cutoff=0.6)
    ]
    known = [key.path for key in keys_of(model) if "[]" not in key.path]
    near = near or [other for other in known if other.rpartition(".")[2] == last]
    near = near or difflib.get_close_matches(".".join(path), known, n=1, cutoff=0.75)
    return f"; did you mean {'--' if flag else ''}{near[0]}?" if near else ""


def format_value(value: object) -> str:
    """Return a value as a message shows it: short, and without credentials in URLs."""
    text = hide_url_secrets(repr(value), mark="…")
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _value_fault(
    model: type[Section], details: ErrorDetails, locations: Mapping[KeyPath, str]
) -> Fault:
    path, info = _field_at(model, details["loc"])
    remedy, value = _remedy(model, path, info, details)
    return Fault(path=".".join(path), found=value, remedy=remedy + _in_file(path, locations))


def _field_at(
    model: type[Section], location: tuple[int | str, ...]
) -> tuple[KeyPath, FieldInfo | None]:
    """Return the key path of an error, less the union members that pydantic adds, and its field."""
    path: KeyPath = ()
    current: type[Section] | None = model
    info: FieldInfo | None = None
    for part in location:
        if isinstance(part, int):
            if info is None or not is_list(info.annotation):
                break
            path = (*path, str(part))
            current = section_of(item_of(info.annotation))
            continue
        if current is None:
            break
        path = (*path, part)
        info = current.model_fields.get(part)
        current = section_of(info.annotation) if info else None
    return path, info


def _remedy(
    model: type[Section], path: KeyPath, info: FieldInfo | None, details: ErrorDetails
) -> tuple[str, str]:
    """Return what to do, and the value to show."""
    kind, value = details["type"], details["input"]
    if kind == "extra_forbidden":
        return f"no such key{suggest_key(path, model)}", ""
    if kind == "missing":
        doc = " ".join((info.description or "").split()) if info else ""
        return f"must be given. {doc}".strip(), ""
    if kind == "value_error":
        return str(details["ctx"]["error"]).partition(", got ")[0], format_value(value)
    if kind in ("greater_than", "greater_than_equal", "less_than", "less_than_equal", "too_short"):
        return details["msg"].replace("Input should be", "must be").replace(
            "Tuple should have at least 1 item after validation, not 0", "must hold at least one"
        ), format_value(value)
    if kind == "finite_number":
        return "must be a finite number", format_value(value)
    if info is None:
        return details["msg"], format_value(value)
    item = item_of(info.annotation) if path[-1].isdigit() else None
    wanted = "a mapping" if section_of(item) else describe_type(info)
    hint = f'; quote it: "{value}"' if wanted.startswith("text") and isinstance(value, int) else ""
    return f"must be {wanted}{_near_choice(value, wanted)}{hint}", format_value(value)


def _near_choice(value: object, wanted: str) -> str:
    choices = [word.strip(",") for word in wanted.split() if word.strip(",") not in ("or", "null")]
    near = difflib.get_close_matches(value, choices, n=1) if isinstance(value, str) else []
    return f"; did you mean {near[0]}?" if near and near != ["text"] else ""


def _in_file(path: KeyPath, locations: Mapping[KeyPath, str]) -> str:
    location = locations.get(path)
    return f" ({location})" if location else ""


def _check_faults(
    model: type[Section], raw: Mapping[str, Any], locations: Mapping[KeyPath, str]
) -> Iterator[Fault]:
    if not issubclass(model, Settings):
        return
    fields = ValidFields(model, raw)
    for check in model.checks:
        try:
            faults = list(check(fields))
        except InvalidFieldError:
            continue
        for fault in faults:
            location = _in_file(tuple(fault.path.split(".")), locations)
            yield Fault(path=fault.path, found=fault.found, remedy=fault.remedy + location)


class InvalidFieldError(Exception):
    """A check has read a field that has no valid value."""


class ValidFields:
    """The valid fields of a model as attributes; reading another raises `InvalidFieldError`."""

    def __init__(self, model: type[Section], raw: Mapping[str, Any]) -> None:
        self._model = model
        self._raw = raw

    def __getattr__(self, name: str) -> Any:
        info = self._model.model_fields.get(name)
        if info is None:
            return getattr(self._model, name).__get__(self)
        if name not in self._raw:
            if info.is_required():
                raise InvalidFieldError(name)
            return info.get_default(call_default_factory=True)
        return _valid(info, self._raw[name])


def _valid(info: FieldInfo, value: Any) -> Any:
    section, item = section_of(info.annotation), section_of(item_of(info.annotation))
    if section and isinstance(value, Mapping):
        return ValidFields(section, value)
    if item and isinstance(value, list) and all(isinstance(each, Mapping) for each in value):
        return tuple(ValidFields(item, each) for each in value)
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(_annotated(info), config={"strict": True})
        return adapter.validate_python(value)
    except ValidationError as error:
        raise InvalidFieldError(str(error)) from error


def _annotated(info: FieldInfo) -> Any:
    annotation: Any = info.annotation
    for item in info.metadata:
        annotation = Annotated[annotation, item]
    return annotation
