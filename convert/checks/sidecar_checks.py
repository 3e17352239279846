"""Check the files beside a dataset's shards: provenance and tokenizer.

A dataset comes in, and faults come out, one line each. Nothing is changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from convert.encoding.vocabulary import build_vocabulary
from convert.output.provenance import SCHEMA, read_parquet_bytes
from stream_pretrain.errors import ConfigError, DataError
from stream_pretrain.schema import CARD_NAME, DOCUMENTS_DIR, TOKENIZER_DIR, Card
from stream_pretrain.storage.hashing import hash_of
from stream_pretrain.storage.store import Store

TOKENIZER_KEY = f"{TOKENIZER_DIR}/tokenizer.json"


def read_documents(store: Store, key: str) -> Any:
    """Return one table of provenance; raise `DataError` where the file cannot be read."""
    try:
        table = read_parquet_bytes(store.read(key))
        missing = [name for name in SCHEMA.names if name not in table.column_names]
        if missing:
            raise ValueError(f"no column {missing[0]!r}")
        if any(table[name].null_count for name in SCHEMA.names):
            raise ValueError("null values")
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        message = " ".join(str(error).split())
        raise DataError(
            f"{store.url(key)}: damaged, no table of documents ({message}). Copy it again, or "
            "convert the dataset again."
        ) from error
    return table


def document_faults(
    store: Store, card: Card, split: str, sizes: Mapping[str, int]
) -> Iterator[str]:
    """Yield the faults of provenance that is damaged or does not cover the rows."""
    keys = sorted(key for key in sizes if key.startswith(f"{split}/{DOCUMENTS_DIR}/"))
    faults = list(_unexpected_files(store, card, split, keys))
    if faults:
        yield from faults
        return
    url = f"{store.url(f'{split}/{DOCUMENTS_DIR}')}"
    rows = card.splits[split].samples * (card.seq_len + 1)
    padding = card.notes.get("padding", {}).get(split, 0)
    end = gaps = 0
    for key in keys:
        try:
            table = read_documents(store, key)
        except DataError as error:
            yield str(error)
            return
        first, tokens = table["first_token"].to_numpy(), table["tokens"].to_numpy()
        order = np.argsort(first, kind="stable") if padding else np.arange(len(first))
        first, tokens = first[order], tokens[order]
        ends = np.concatenate(([end], first + tokens))
        steps = first - ends[:-1]
        if (steps < 0).any() or (not padding and steps.any()):
            row = int(np.flatnonzero(steps)[0])
            yield f"{store.url(key)}: row {row} does not follow the one before it."
        gaps += int(steps.sum())
        end = int(ends[-1])
    if end + padding - gaps != rows:
        yield f"{url}: covers {end - gaps} tokens, the samples hold {rows - padding}."


def _unexpected_files(store: Store, card: Card, split: str, keys: list[str]) -> Iterator[str]:
    """Yield the tables that are not those of the card; an older card names none."""
    listed: Mapping[str, str] | None = card.notes.get("documents")
    if listed is None:
        return
    expected = {key: digest for key, digest in listed.items() if key.startswith(f"{split}/")}
    for key in sorted({*expected, *keys}):
        if key not in keys:
            yield f"{store.url(key)}: absent."
        elif key not in expected:
            yield f"{store.url(key)}: a table of documents that the card does not list."
        elif (digest := hash_of("xxh3_128", store.read(key))) != expected[key]:
            yield f"{store.url(key)}: xxh3_128 is {digest}, the card says {expected[key]}: damaged."


def tokenizer_faults(store: Store, card: Card) -> Iterator[str]:
    """Yield the faults of a tokenizer that is not the card's, or of special ids that differ."""
    if store.head(TOKENIZER_KEY) is None:
        yield f"{store.url(TOKENIZER_KEY)}: absent."
        return
    fingerprint = hash_of("xxh3_128", store.read(TOKENIZER_KEY))
    if fingerprint != card.tokenizer_fingerprint:
        yield (
            f"{store.url(TOKENIZER_KEY)}: fingerprint {fingerprint}, the card says "
            f"{card.tokenizer_fingerprint}."
        )
        return
    yield from _wrong_special_ids(store, card)


def _wrong_special_ids(store: Store, card: Card) -> Iterator[str]:
    url = store.url(CARD_NAME)
    names = [info.key for info in store.list(TOKENIZER_DIR)]
    files = {key.removeprefix(f"{TOKENIZER_DIR}/"): store.read(key) for key in names}
    rules = {which: card.settings.get(which, "auto") for which in ("eos", "bos")}
    try:
        vocabulary = build_vocabulary(store.url(TOKENIZER_DIR), files, **rules)
    except (ConfigError, ValueError) as error:
        yield f"{url}: settings eos {rules['eos']}, bos {rules['bos']}: {error}"
        return
    checks = (
        ("vocab_size", card.vocab_size, vocabulary.vocab_size, "the size of its vocabulary"),
        ("eos_id", card.eos_id, vocabulary.eos_id, f"its end-of-text (--eos {rules['eos']})"),
        ("bos_id", card.bos_id, vocabulary.bos_id, f"its begin-of-text (--bos {rules['bos']})"),
    )
    for field, recorded, expected, meaning in checks:
        is_known = field == "vocab_size" or field.removesuffix("_id") in card.settings
        if is_known and recorded != expected:
            yield f"{url}: {field} is {recorded}, the tokenizer says {expected}, {meaning}."
