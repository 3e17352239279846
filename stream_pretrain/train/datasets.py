"""Sources and plan -> datasets. In: what `gather` found. Out: the training dataset and the holdouts. Reads no sample."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stream_pretrain.config.sections import Config
from stream_pretrain.data.holdout import Holdout
from stream_pretrain.data.shards import LoudDataset, ShardSource, open_dataset
from stream_pretrain.order import Order
from stream_pretrain.plan import Plan
from stream_pretrain.train.gather import Source, Sources


def training_dataset(config: Config, planned: Plan, sources: Sources) -> LoudDataset:
    """The dataset in the plan's order, with everything that streaming would derive set explicitly."""
    drawn = planned.order.drawn
    return open_dataset(
        _shard_sources(config, sources.train, drawn),
        order=planned.order,
        batch_size=planned.micro_batch,
        row_ids=planned.seq_len + 1,
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
        row_ids=planned.seq_len + 1,
    )
    return Holdout(
        dataset,
        samples=planned.holdout_samples[name],
        micro_batch=planned.micro_batch,
        world=planned.world,
        tokens_per_byte=_tokens_per_byte(held),
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
            local=Path(source.store.location),
            drawn=count,
        )
        for source, count in zip(sources, drawn, strict=True)
    ]
