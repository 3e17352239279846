"""Define the flags that belong to one command and not to the configuration."""

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
    """Steps of each of the compared runs."""

    kills: PositiveCount = 2
    """Number of times that the interrupted run is killed."""

    out: LocalPath | None = None
    """Directory for both runs; null: a temporary directory that is deleted afterwards."""

    as_json: Annotated[bool, Field(alias="json")] = False
    """Print JSON for a script."""


class StorageOptions(Section):
    """Flags of commands that read an existing run directory: those of the `storage` section."""

    storage: StorageConfig = StorageConfig()
