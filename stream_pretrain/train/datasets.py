"""Sources and plan -> datasets. In: what `gather` found. Out: the training dataset and the holdouts. Reads no sample."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from stream_pretrain.config.sections import Config
from stream_pretrain.data.fetch import FetchSettings
from stream_pretrain.data.holdout import Holdout
from stream_pretrain.data.shards import LoudDataset, ReadSettings, ShardSource, open_dataset
from stream_pretrain.order import Order
from stream_pretrain.plan import Plan
from stream_pretrain.train.gather import Source, Sources
from stream_pretrain.train.rundir import cache_home


def training_dataset(config: Config, planned: Plan, sources: Sources) -> LoudDataset:
    """The dataset in the plan's order, with everything that streaming would derive set explicitly."""
    return open_dataset(
        _shard_sources(config, sources.train, planned.order.drawn),
        order=planned.order,
        batch_size=planned.micro_batch,
        settings=_read_settings(config, planned),
    )


def holdouts(config: Config, planned: Plan, sources: Sources) -> dict[str, Holdout]:
    """One fixed set for each validation stream."""
    return {name: _holdout(config, planned, name, held) for name, held in sources.holdouts.items()}


def _holdout(config: Config, planned: Plan, name: str, held: Sequence[Source]) -> Holdout:
    counts = tuple(source.facts.samples for source in held)
    order = Order(global_batch=1, drawn=counts, canonical_nodes=1, shuffle=False)
    dataset = open_dataset(
        _shard_sources(config, held, counts),
        order=order,
        batch_size=planned.micro_batch,
        settings=_read_settings(config, planned),
    )
    return Holdout(
        dataset,
        samples=planned.holdout_samples[name],
        micro_batch=planned.micro_batch,
        world=planned.world,
        tokens_per_byte=_tokens_per_byte(held),
    )


def _read_settings(config: Config, planned: Plan) -> ReadSettings:
    """Rows as long as planned, ids within the embedding, fetching as configured."""
    return ReadSettings(
        row_ids=planned.seq_len + 1,
        vocab_size=planned.model.padded_vocab_size,
        truncate=config.data.truncate,
        cache_limit=config.data.cache.limit,
        fetch=FetchSettings(
            verify=config.data.verify,
            deadline_s=config.storage.deadline,
            warn_after_s=config.data.warn_after,
        ),
    )


def _tokens_per_byte(held: Sequence[Source]) -> float | None:
    """Tokens for each byte of text in these splits, where the cards know."""
    tokens = bytes_ = 0
    for source in held:
        card = source.facts.card
        split = source.store.location.rstrip("/").rsplit("/", 1)[-1]
        if card is None or split not in card.splits or not card.splits[split].text_bytes:
            return None
        tokens += card.splits[split].tokens
        bytes_ += card.splits[split].text_bytes
    return tokens / bytes_


def _shard_sources(
    config: Config, sources: Sequence[Source], drawn: Sequence[int]
) -> list[ShardSource]:
    return [
        ShardSource(
            name=source.facts.name,
            store=source.store,
            index=source.index,
            directory=cache_directory(config, source),
            drawn=count,
        )
        for source, count in zip(sources, drawn, strict=True)
    ]


def cache_directory(config: Config, source: Source) -> Path | None:
    """Where this node keeps a stream's raw shards; None where they are read in place.

    Compressed shards of a local dataset are unpacked in the cache: the data itself is never written to.
    """
    local_only = source.config.remote is None
    if local_only and all(shard.packed is None for shard in source.index.shards):
        return None
    split = source.store.location.rstrip("/").rsplit("/", 1)[-1]
    if source.config.local is not None and not local_only:
        return Path(source.config.local) / split
    base = Path(config.data.cache.dir) if config.data.cache.dir else cache_home() / "shards"
    name = hashlib.sha256(source.store.location.encode()).hexdigest()[:12]
    return base / f"{source.facts.name}-{name}" / split
