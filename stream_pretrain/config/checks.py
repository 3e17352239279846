"""Settings that contradict one another. In: a Config, or its valid part. Out: faults. Loads
nothing, sees no data or device."""

from __future__ import annotations

from stream_pretrain.config.types import Check

CHECKS: tuple[Check, ...] = ()
