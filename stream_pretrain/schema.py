"""The facts that the packages hand to one another. In: nothing. Out: frozen dataclasses. Does not
read files or load torch.

`convert` writes a `Card`; whoever starts a job gathers `World`, `Card` and `ModelFacts` and gives
them to `plan`.
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
    """One file of a receipt: name relative to the receipt, size in bytes, xxh3-128 in hex."""

    name: str
    size: int
    xxh3_128: str


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """One input of a conversion: where it was, its size in bytes and xxh3-128 of its raw bytes."""

    name: str
    path: str
    size: int
    xxh3_128: str
    documents: int = 0
    tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class SplitCounts:
    """Counts of one split. `tokens` include end-of-text; `dropped_tokens` did not fill a last
    sample.
    """

    documents: int = 0
    tokens: int = 0
    samples: int = 0
    dropped_tokens: int = 0
    text_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Card:
    """`dataset.json`: how a dataset was made. One card covers all splits.

    `seq_len` counts inputs per sample (rows hold `seq_len + 1` ids). `vocab_size` is the
    tokenizer's, special tokens included. `content_hash` covers token rows and split names alone.
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
        """The card as indented JSON with sorted keys and a final newline."""
        return json.dumps(asdict(self), indent=2, sort_keys=True, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, where: str) -> Card:
        """Parse a card; `where` names it in the `DataError` that a bad one raises."""
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
    """What is known of a stream before a job starts: counts from its index, format from a card."""

    name: str
    location: str
    samples: int
    row_ids: int
    shards: int
    bytes_compressed: int
    bytes_raw: int
    largest_shard_bytes: int
    index_digest: str
    hashed: bool
    card: Card | None = None


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """What `plan` needs of a model: sizes in tokens, parameters counted once where tied."""

    name: str
    vocab_size: int
    padded_vocab_size: int
    block_size: int
    parameters: int
    parameters_without_embeddings: int
    layers: int
    flops_per_token: float
