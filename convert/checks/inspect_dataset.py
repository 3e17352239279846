"""`convert-mds inspect`. In: a dataset. Out: a `DatasetOverview`: card, counts, lengths of
documents, samples.

Reads provenance and the first shard. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from convert.checks.sidecar_checks import read_documents
from convert.checks.verify_dataset import UNREADABLE, read_card, read_index, read_rows
from stream_pretrain.errors import DataError
from stream_pretrain.mds.index import Shard
from stream_pretrain.schema import DOCUMENTS_DIR, TOKENIZER_DIR, Card
from stream_pretrain.storage.store import Store

BAR_WIDTH = 40
SHOWN_SOURCES = 20
SHOWN_CHARACTERS = 600
BOUNDARY = "⏎END⏎"


@dataclass(frozen=True, kw_only=True)
class Bin:
    """Documents whose length in tokens is in [low, high)."""

    low: int
    high: int
    documents: int


@dataclass(frozen=True, kw_only=True)
class DatasetOverview:
    """What `inspect` shows of one split."""

    card: Card
    split: str
    shards: int
    lengths: Sequence[Bin]
    quantiles: Mapping[str, int]
    samples: Sequence[str]

    def to_plain(self) -> dict[str, Any]:
        """For a script."""
        plain = asdict(self)
        return {**plain, "card": asdict(self.card)}

    def lines(self) -> list[str]:
        """For a person."""
        return [*self._card_lines(), "", *self._length_lines(), *self._sample_lines()]

    def _card_lines(self) -> list[str]:
        card = self.card
        lines = [
            f"{card.seq_len} tokens a sample, {card.dtype}, vocabulary {card.vocab_size:,}",
            f"tokenizer {card.tokenizer_fingerprint}, end-of-text {card.eos_id}",
            f"content hash {card.content_hash}",
            f"encoder: {card.notes.get('encoder', {}).get('reason', 'unknown')}",
        ]
        for name, counts in card.splits.items():
            lines.append(
                f"{name}: {counts.documents:,} documents, {counts.tokens:,} tokens, "
                f"{counts.samples:,} samples, {counts.dropped_tokens:,} tokens dropped, "
                f"{counts.text_bytes / max(1, counts.tokens):.2f} bytes a token"
            )
        for what, count in card.notes.get("tallies", {}).items():
            lines.append(f"counted: {count:,} {what}")
        lines += ["", "tokens by source:"]
        sources = sorted(card.sources, key=lambda source: -source.tokens)
        for source in sources[:SHOWN_SOURCES]:
            lines.append(
                f"  {source.tokens:>14,}  {source.documents:>10,} documents  {source.name}"
            )
        if len(sources) > SHOWN_SOURCES:
            lines.append(f"  and {len(sources) - SHOWN_SOURCES} more")
        return lines

    def _length_lines(self) -> list[str]:
        most = max((item.documents for item in self.lengths), default=1)
        lines = [f"tokens a document ({self.split}):"]
        for item in self.lengths:
            bar = "█" * max(1 if item.documents else 0, round(BAR_WIDTH * item.documents / most))
            lines.append(f"  {item.low:>10,} to {item.high - 1:>10,}  {item.documents:>9,}  {bar}")
        shown = ", ".join(f"{name} {value:,}" for name, value in self.quantiles.items())
        return [*lines, f"  {shown}"]

    def _sample_lines(self) -> list[str]:
        lines = []
        for number, text in enumerate(self.samples):
            short = text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + " …"
            lines += ["", f"sample {number} of {self.split} ({BOUNDARY} ends a document):", short]
        return lines


def inspect(store: Store, *, split: str = "train", samples: int = 2) -> DatasetOverview:
    """Look at one split of a dataset."""
    card = read_card(store)
    if split not in card.splits:
        raise DataError(
            f"{store.location}: no split {split!r}. Choose one of {', '.join(card.splits)}."
        )
    shards = read_index(store, split)
    tokens = _document_tokens(store, split)
    return DatasetOverview(
        card=card,
        split=split,
        shards=len(shards),
        lengths=_bins(tokens),
        quantiles=_quantiles(tokens),
        samples=_decoded(store, card, split, shards, samples),
    )


def _document_tokens(store: Store, split: str) -> Any:
    """Tokens of each document, pieces of one document added up."""
    ids: list[Any] = []
    tokens: list[Any] = []
    for info in store.list(f"{split}/{DOCUMENTS_DIR}"):
        table = read_documents(store, info.key)
        ids.append(table["id"].to_numpy(zero_copy_only=False))
        tokens.append(table["tokens"].to_numpy())
    if not ids:
        return np.zeros(0, np.int64)
    _, number = np.unique(np.concatenate(ids).astype(str), return_inverse=True)
    return np.bincount(number, weights=np.concatenate(tokens)).astype(np.int64)


def _bins(tokens: Any) -> list[Bin]:
    """Powers of two."""
    if not len(tokens):
        return []
    exponents = np.floor(np.log2(np.maximum(tokens, 1))).astype(int)
    low, high = int(exponents.min()), int(exponents.max())
    return [
        Bin(low=1 << e, high=2 << e, documents=int((exponents == e).sum()))
        for e in range(low, high + 1)
    ]


def _quantiles(tokens: Any) -> dict[str, int]:
    if not len(tokens):
        return {}
    values = np.quantile(tokens, [0, 0.1, 0.5, 0.9, 1], method="nearest")
    names = ("shortest", "10 %", "median", "90 %", "longest")
    return {name: int(value) for name, value in zip(names, values, strict=True)}


def _decoded(
    store: Store, card: Card, split: str, shards: Sequence[Shard], number: int
) -> list[str]:
    from tokenizers import Tokenizer

    if not number:
        return []
    tokenizer = Tokenizer.from_str(store.read(f"{TOKENIZER_DIR}/tokenizer.json").decode())
    try:
        rows = read_rows(store, split, shards[0], card)[:number]
    except UNREADABLE as error:
        raise DataError(
            f"{store.url(split)}: the first shard cannot be read ({error}). "
            f"Run: convert-mds verify {store.location}"
        ) from error
    return [_with_boundaries(tokenizer, row, card.eos_id) for row in rows]


def _with_boundaries(tokenizer: Any, row: Any, eos_id: int | None) -> str:
    borders = [] if eos_id is None else (np.flatnonzero(row == eos_id) + 1).tolist()
    texts = []
    for begin, end in zip([0, *borders], [*borders, len(row)], strict=True):
        if end > begin:
            is_whole = end in borders
            ids = row[begin : end - 1 if is_whole else end].tolist()
            text = tokenizer.decode(ids, skip_special_tokens=False)
            texts.append(text + (BOUNDARY if is_whole else ""))
    return "".join(texts)
