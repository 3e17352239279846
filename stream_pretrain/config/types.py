"""Define the field types of configuration models.

Each type parses a value as a person writes it (`64MiB`, `36h`, `1%`) into a number, a duration or a
location. `Section` is the base class of a part of a configuration, `Settings` of a whole
configuration, which also runs checks between its keys. Defaults are set in `sections`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
    model_validator,
)

from stream_pretrain.errors import Fault
from stream_pretrain.units import parse_bytes, parse_count, parse_duration

SCHEMES = ("s3", "gs", "az")
Check = Callable[[Any], Iterator[Fault]]


class FaultsError(ValueError):
    """Carry the faults of checks between keys through pydantic."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__("; ".join(map(str, faults)))
        self.faults = tuple(faults)


class Section(BaseModel):
    """A part of a configuration: frozen, keyword-only and strict.

    Unknown keys are faults. The text under a field is its documentation.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True, allow_inf_nan=False
    )


class Settings(Section):
    """A whole configuration. Each of `checks` yields faults in the combination of several keys."""

    checks: ClassVar[tuple[Check, ...]] = ()

    @model_validator(mode="after")
    def _fields_agree(self) -> Settings:
        faults = [fault for check in self.checks for fault in check(self)]
        if faults:
            raise FaultsError(faults)
        return self


class TrainingDuration(NamedTuple):
    """A part of a run: `amount` in steps, tokens, or as a fraction of the run."""

    amount: float
    unit: Literal["steps", "tokens", "fraction"]

    def to_yaml(self) -> int | float | str:
        """Return the value as it is written in YAML: `100`, `0.01` or `"2000000000 tokens"`."""
        if self.unit == "fraction":
            return self.amount
        return int(self.amount) if self.unit == "steps" else f"{int(self.amount)} tokens"


_DURATION = 'steps (100), a fraction of the run (0.01 or 1%) or tokens ("2B tokens")'
_DURATION_TEXT = re.compile(r"(.+?)\s*(steps|tokens|%)")


def parse_training_duration(value: object) -> TrainingDuration:
    """Parse `100` or `"500 steps"`, `0.01` or `"1%"` (a fraction of the run), or `"2B tokens"`.

    Raises:
        ValueError: the value is not such a duration.
    """
    if isinstance(value, TrainingDuration):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return TrainingDuration(value, "steps")
    if isinstance(value, float) and math.isfinite(value) and 0 <= value <= 1:
        return TrainingDuration(value, "fraction")
    match = _DURATION_TEXT.fullmatch(value.strip()) if isinstance(value, str) else None
    try:
        if match and match[2] == "%" and 0 <= float(match[1]) <= 100:
            return TrainingDuration(float(match[1]) / 100, "fraction")
        if match and match[2] != "%":
            return TrainingDuration(
                parse_count(match[1]), "steps" if match[2] == "steps" else "tokens"
            )
    except ValueError:
        pass
    raise ValueError(f"must be {_DURATION}, got {value!r}")


def _positive(value: float) -> float:
    if value <= 0:
        raise ValueError(f"must be greater than 0, got {value!r}")
    return value


def _path(value: str) -> str:
    if not value or "://" in value:
        raise ValueError(f"must be a local path, got {value!r}")
    return value


def _location(value: str) -> str:
    scheme, separator, rest = value.partition("://")
    if not value:
        raise ValueError("must be a path or URL, got ''")
    if separator and scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        raise ValueError(f"must be a local path or begin with {known}, got {scheme}://…")
    if separator and "@" in rest.partition("/")[0]:
        raise ValueError("must hold no credentials: use a profile or the environment")
    if separator and not rest.partition("/")[0]:
        raise ValueError(f"must name a bucket after {scheme}://")
    return value


def _endpoint(value: str) -> str:
    scheme, _, rest = value.partition("://")
    if scheme not in ("http", "https") or not rest:
        raise ValueError("must begin with http:// or https://")
    if "@" in rest.partition("/")[0]:
        raise ValueError("must hold no credentials: use a profile or the environment")
    return value


def _precision(value: object) -> object:
    return (
        {32: "32-true", "32": "32-true"}.get(value, value)
        if isinstance(value, int | str)
        else value
    )


_TEXT_OR_NUMBER = {"type": ["integer", "number", "string"]}

Count = Annotated[int, BeforeValidator(parse_count), WithJsonSchema(_TEXT_OR_NUMBER)]
"""A whole number of at least 0: `1000`, `1e9`, `20B`, `64Ki`."""

PositiveCount = Annotated[Count, AfterValidator(_positive)]
"""A whole number of at least 1."""

ByteSize = Annotated[
    int, BeforeValidator(parse_bytes), AfterValidator(_positive), WithJsonSchema(_TEXT_OR_NUMBER)
]
"""Bytes: `64MiB`, `100MB`."""

Seconds = Annotated[
    float,
    BeforeValidator(parse_duration),
    AfterValidator(_positive),
    WithJsonSchema(_TEXT_OR_NUMBER),
]
"""A duration above 0: `90m`, `1:30:00`, `36h`, or seconds."""

StepsTokensOrFraction = Annotated[
    TrainingDuration,
    PlainValidator(parse_training_duration),
    PlainSerializer(TrainingDuration.to_yaml, return_type=int | float | str),
    WithJsonSchema(_TEXT_OR_NUMBER),
]
"""`100` steps, `0.01` or `1%` of the run, `"2B tokens"`."""

LocalPath = Annotated[str, AfterValidator(_path)]
"""A path on this machine."""

Location = Annotated[str, AfterValidator(_location)]
"""A local path, or a URL with one of `SCHEMES` and without credentials."""

Endpoint = Annotated[str, AfterValidator(_endpoint)]
"""An http(s) address of an S3-compatible service."""

Precision = Annotated[
    Literal["32-true", "bf16-mixed", "bf16-true", "16-mixed"], BeforeValidator(_precision)
]
"""A precision that Fabric knows; 32 means `32-true`."""
