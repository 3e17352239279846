"""Define the frozen dataclasses that the packages exchange.

`convert` writes a `Card`. A job collects `World`, the `StreamFacts` of its data and `ModelFacts`,
and passes them to `plan`. This module reads no files and does not load torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from stream_pretrain.errors import DataError

CARD_NAME = "dataset.json"
INDEX_NAME = "index.json"
RECEIPT_NAME = "receipt.json"
TOKENIZER_DIR = "tokenizer"
DOCUMENTS_DIR = "documents"
TOKENS_COLUMN = "tokens"
CARD_SCHEMA_VERSION = 1

TokenDtype = Literal["uint16", "uint32"]


@dataclass(frozen=True, kw_only=True)
class World:
    """Who this process is among all of a job. `nodes * local_world_size == world_size`."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    node_rank: int = 0

    @property
    def nodes(self) -> int:
        """Number of machines."""
        return self.world_size // self.local_world_size

    @property
    def is_rank0(self) -> bool:
        """True on rank 0 alone."""
        return self.rank == 0


@dataclass(frozen=True, kw_only=True)
class FileStamp:
    """One file of a receipt: name relative to the receipt, size in bytes and xxh3-128 in hex."""

    name: str
    size: int
    xxh3_128: str


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """One input file of a conversion: its path, size in bytes and the xxh3-128 of its raw bytes."""

    name: str
    path: str
    size: int
    xxh3_128: str
    documents: int = 0
    tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class SplitCounts:
    """Counts of one split.

    `tokens` includes end-of-text tokens; `dropped_tokens` are those after the last full sample.
    """

    documents: int = 0
    tokens: int = 0
    samples: int = 0
    dropped_tokens: int = 0
    text_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Card:
    """How a dataset was made, as stored in `dataset.json`. One card covers all splits.

    `seq_len` counts inputs per sample (a row holds `seq_len + 1` ids). `vocab_size` is that of the
    tokenizer, special tokens included. `content_hash` covers only token rows and split names.
    """

    seq_len: int
    dtype: TokenDtype
    vocab_size: int
    tokenizer_fingerprint: str
    content_hash: str
    eos_id: int | None = None
    bos_id: int | None = None
    splits: Mapping[str, SplitCounts] = field(default_factory=dict)
    sources: tuple[SourceFile, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)
    schema_version: int = CARD_SCHEMA_VERSION

    def to_json(self) -> str:
        """Return the card as indented JSON with sorted keys and a final newline."""
        return json.dumps(asdict(self), indent=2, sort_keys=True, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, where: str) -> Card:
        """Parse a card; `where` names it in error messages.

        Raises:
            DataError: the text is not a card that this version can read.
        """
        try:
            raw = json.loads(text)
        except ValueError as error:
            raise DataError(f"{where}: not JSON ({error}). Convert the dataset again.") from error
        if not isinstance(raw, dict) or "schema_version" not in raw:
            raise DataError(
                f"{where}: not a dataset card (no schema_version). Convert the dataset again."
            )
        if raw["schema_version"] != CARD_SCHEMA_VERSION:
            raise DataError(
                f"{where}: card schema {raw['schema_version']}, this version reads "
                f"{CARD_SCHEMA_VERSION}. "
                "Use the version that wrote it, or convert again."
            )
        known = {f.name for f in fields(cls)}
        try:
            values = {key: value for key, value in raw.items() if key in known}
            values["splits"] = {k: SplitCounts(**v) for k, v in raw.get("splits", {}).items()}
            values["sources"] = tuple(SourceFile(**source) for source in raw.get("sources", ()))
            return cls(**values)
        except (TypeError, AttributeError) as error:
            raise DataError(f"{where}: malformed dataset card ({error}). Convert again.") from error


@dataclass(frozen=True, kw_only=True)
class StreamFacts:
    """What is known about a stream before a job starts.

    The counts come from its index; `card` is None for a stream that another tool has written.
    """

    name: str
    location: str
    samples: int
    row_ids: int
    shards: int
    index_digest: str
    card: Card | None = None


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """What `plan` needs to know about a model.

    `block_size` is the context length in tokens. Tied parameters count once. `flops_per_token`
    covers the forward and the backward pass.
    """

    name: str
    vocab_size: int
    padded_vocab_size: int
    block_size: int
    parameters: int
    parameters_without_embeddings: int
    layers: int
    flops_per_token: float
