"""Thin first version; the storage owner replaces it. read_stream(root, name, split, default_split) -> (StreamFacts, Store)."""

from __future__ import annotations

import json

import xxhash

from stream_pretrain.errors import DataError
from stream_pretrain.schema import CARD_NAME, Card, StreamFacts
from stream_pretrain.storage.store import Store


def read_stream(
    root: Store, *, name: str, split: str | None, default_split: str
) -> tuple[StreamFacts, Store]:
    """Facts of one stream and the store that holds its shards."""
    card = None
    store = root
    if root.head(CARD_NAME) is not None:
        card = Card.from_json(root.read(CARD_NAME), root.url(CARD_NAME))
        store = root.child(split or default_split)
    if store.head("index.json") is None:
        raise DataError(f"{store.url('index.json')}: no such file")
    index = json.loads(store.read("index.json"))
    shards = index["shards"]
    row = int(shards[0]["column_encodings"][0].split(":")[2])
    canonical = json.dumps(index, sort_keys=True, separators=(",", ":"))
    return StreamFacts(
        name=name,
        location=store.location,
        samples=sum(s["samples"] for s in shards),
        row_ids=row,
        shards=len(shards),
        bytes_compressed=sum((s["zip_data"] or s["raw_data"])["bytes"] for s in shards),
        bytes_raw=sum(s["raw_data"]["bytes"] for s in shards),
        largest_shard_bytes=max(s["raw_data"]["bytes"] for s in shards),
        index_digest=xxhash.xxh3_128_hexdigest(canonical.encode()),
        hashed=True,
        card=card,
    ), store
