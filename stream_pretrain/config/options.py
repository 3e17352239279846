"""Flags that belong to one command and not to the configuration. In: values. Out: frozen models.
Does nothing else."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from stream_pretrain.config.sections import StorageConfig
from stream_pretrain.config.types import LocalPath, PositiveCount, Section


class NoOptions(Section):
    """For commands without flags of their own."""


class PlanOptions(Section):
    """Flags of `plan`."""

    as_json: Annotated[bool, Field(alias="json")] = False
    """Print JSON for a script."""


class SelftestOptions(Section):
    """Flags of `selftest`."""

    steps: PositiveCount = 20
    """Steps that each of the compared runs takes."""

    kills: PositiveCount = 2
    """Times that the interrupted run is killed."""

    out: LocalPath | None = None
    """Directory for both runs; null: a temporary one, deleted if they agree."""

    as_json: Annotated[bool, Field(alias="json")] = False
    """Print JSON for a script."""


class Access(Section):
    """What commands on an existing run directory need of the configuration."""

    storage: StorageConfig = StorageConfig()
