"""What is wrong with values. In: a model, raw values, pydantic's errors. Out: faults. Stops at
nothing: all are collected.

Checks between fields also run where other fields are faulty, on the valid part of the
configuration.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from stream_pretrain.config.fields import (
    describe,
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
    places: Mapping[KeyPath, str],
) -> list[Fault]:
    """Every fault of `raw`: those pydantic found, then those of the model's cross-field checks."""
    shape: dict[str, Fault] = {}
    for details in error.errors(include_url=False):
        if isinstance(details.get("ctx", {}).get("error"), FaultsError):
            continue
        fault = _shape_fault(model, details, places)
        shape.setdefault(fault.path, fault)
    for path in [path for path in shape if any(other.startswith(f"{path}.") for other in shape)]:
        del shape[path]
    return [*shape.values(), *_check_faults(model, raw, places)]


def did_you_mean(path: Sequence[str], model: type[Section], *, flag: bool = False) -> str:
    """`; did you mean optimizer.lr?`, or '' where nothing is near."""
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


def shown(value: object) -> str:
    """A value as a message shows it: short, and without credentials in URLs."""
    text = hide_url_secrets(repr(value), mark="…")
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _shape_fault(
    model: type[Section], details: ErrorDetails, places: Mapping[KeyPath, str]
) -> Fault:
    path, info = _place(model, details["loc"])
    remedy, found = _remedy(model, path, info, details)
    return Fault(path=".".join(path), found=found, remedy=remedy + _where(path, places))


def _place(
    model: type[Section], location: tuple[int | str, ...]
) -> tuple[KeyPath, FieldInfo | None]:
    """The key path of an error (pydantic adds names of union members at its end) and its field."""
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
    """What to do, and the value to show."""
    kind, value = details["type"], details["input"]
    if kind == "extra_forbidden":
        return f"no such key{did_you_mean(path, model)}", ""
    if kind == "missing":
        doc = " ".join((info.description or "").split()) if info else ""
        return f"must be given. {doc}".strip(), ""
    if kind == "value_error":
        return str(details["ctx"]["error"]).partition(", got ")[0], shown(value)
    if kind in ("greater_than", "greater_than_equal", "less_than", "less_than_equal", "too_short"):
        return details["msg"].replace("Input should be", "must be").replace(
            "Tuple should have at least 1 item after validation, not 0", "must hold at least one"
        ), shown(value)
    if kind == "finite_number":
        return "must be a finite number", shown(value)
    if info is None:
        return details["msg"], shown(value)
    item = item_of(info.annotation) if path[-1].isdigit() else None
    wanted = "a mapping" if section_of(item) else describe(info)
    hint = f'; quote it: "{value}"' if wanted.startswith("text") and isinstance(value, int) else ""
    return f"must be {wanted}{_near_choice(value, wanted)}{hint}", shown(value)


def _near_choice(value: object, wanted: str) -> str:
    choices = [word.strip(",") for word in wanted.split() if word.strip(",") not in ("or", "null")]
    near = difflib.get_close_matches(value, choices, n=1) if isinstance(value, str) else []
    return f"; did you mean {near[0]}?" if near and near != ["text"] else ""


def _where(path: KeyPath, places: Mapping[KeyPath, str]) -> str:
    place = places.get(path)
    return f" ({place})" if place else ""


def _check_faults(
    model: type[Section], raw: Mapping[str, Any], places: Mapping[KeyPath, str]
) -> Iterator[Fault]:
    if not issubclass(model, Settings):
        return
    part = ValidPart(model, raw)
    for check in model.checks:
        try:
            found = list(check(part))
        except FaultyError:
            continue
        for fault in found:
            where = _where(tuple(fault.path.split(".")), places)
            yield Fault(path=fault.path, found=fault.found, remedy=fault.remedy + where)


class FaultyError(Exception):
    """A check has asked for a field that has no valid value."""


class ValidPart:
    """A model's valid fields as attributes; asking for one that is faulty raises `FaultyError`."""

    def __init__(self, model: type[Section], raw: Mapping[str, Any]) -> None:
        self._model = model
        self._raw = raw

    def __getattr__(self, name: str) -> Any:
        info = self._model.model_fields.get(name)
        if info is None:
            return getattr(self._model, name).__get__(self)
        if name not in self._raw:
            if info.is_required():
                raise FaultyError(name)
            return info.get_default(call_default_factory=True)
        return _valid(info, self._raw[name])


def _valid(info: FieldInfo, value: Any) -> Any:
    section, item = section_of(info.annotation), section_of(item_of(info.annotation))
    if section and isinstance(value, Mapping):
        return ValidPart(section, value)
    if item and isinstance(value, list) and all(isinstance(each, Mapping) for each in value):
        return tuple(ValidPart(item, each) for each in value)
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(_annotated(info), config={"strict": True})
        return adapter.validate_python(value)
    except ValidationError as error:
        raise FaultyError(str(error)) from error


def _annotated(info: FieldInfo) -> Any:
    annotation: Any = info.annotation
    for item in info.metadata:
        annotation = Annotated[annotation, item]
    return annotation
