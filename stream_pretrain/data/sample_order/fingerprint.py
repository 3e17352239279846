"""Everything that decides the order, as fields and one hash. In: an `Order`. Out: `Fingerprint`.

Does not look at paths.

A dataset may move between buckets, caches and names; then the fingerprint stays. Anything else that
would change
which samples come in which step changes a field, and the difference can be shown field by field.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import xxhash

from stream_pretrain.plan import Plan


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """`fields` in plain JSON values and `digest`, their xxh3-128 in hex."""

    fields: Mapping[str, Any]
    digest: str

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Fingerprint:
        """Hash the canonical JSON (sorted keys, no spaces) of the fields."""
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
        return cls(fields=json.loads(text), digest=xxhash.xxh3_128_hexdigest(text.encode()))


def fingerprint(plan: Plan, library: str) -> Fingerprint:
    """Fingerprint of the training data that `plan` orders;

    `library` is the version of `streaming`.
    """
    order = plan.order
    return Fingerprint.of(
        {
            "streams": [
                {
                    "index": facts.index_digest,
                    "samples": facts.samples,
                    "drawn": drawn,
                    "tokenizer": facts.card.tokenizer_fingerprint if facts.card else None,
                }
                for facts, drawn in zip(plan.streams, order.drawn, strict=True)
            ],
            "seq_len": plan.seq_len,
            "global_batch": plan.global_batch,
            "epoch_size": order.epoch_size,
            "canonical_nodes": order.canonical_nodes,
            "shuffle": order.shuffle,
            "shuffle_algo": order.shuffle_algo,
            "shuffle_block_size": order.shuffle_block_size,
            "shuffle_seed": order.shuffle_seed,
            "sampling_method": order.sampling_method,
            "sampling_granularity": order.sampling_granularity,
            "batching_method": order.batching_method,
            "partition_algo": order.partition_algo,
            "library": library,
        }
    )


def differences(saved: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """One line for each field that differs, `name: saved -> current`, nested ones by path.

    What only one side has is None on the other.
    """
    lines: list[str] = []
    _walk("", saved, current, lines)
    return lines


def _walk(path: str, saved: Any, current: Any, lines: list[str]) -> None:
    if isinstance(saved, Mapping) and isinstance(current, Mapping):
        for key in sorted({*saved, *current}):
            _walk(f"{path}.{key}" if path else key, saved.get(key), current.get(key), lines)
    elif isinstance(saved, list) and isinstance(current, list):
        for place, (left, right) in enumerate(zip_longest(saved, current)):
            _walk(f"{path}[{place}]", left, right, lines)
    elif (saved is None and _has_fields(current)) or (current is None and _has_fields(saved)):
        _walk(path, saved or {}, current or {}, lines)
    elif saved != current:
        lines.append(f"{path}: {saved} -> {current}")


def _has_fields(value: Any) -> bool:
    return isinstance(value, Mapping) and bool(value)
