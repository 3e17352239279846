"""Sources and plan -> datasets. In: what `gather` found. Out: the training dataset and the
holdouts. Reads no sample.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from stream_pretrain.config.sections import Config
from stream_pretrain.data.cache.cache_setup import ShardSource, set_up_cache
from stream_pretrain.data.cache.disk_space import check_space, shuffle_window_bytes
from stream_pretrain.data.fetching.fetch_shard import FetchSettings
from stream_pretrain.data.fetching.shard_stream import ReadSettings
from stream_pretrain.data.node.job_directory import check_shared_memory
from stream_pretrain.data.reading.shard_dataset import ShardDataset, open_dataset
from stream_pretrain.data.validation_set import ValidationSet
from stream_pretrain.order import Order
from stream_pretrain.plan import Plan
from stream_pretrain.train.data_sources import DataSource, DataSources

log = logging.getLogger("stream_pretrain.data")


def training_dataset(config: Config, planned: Plan, sources: DataSources) -> ShardDataset:
    """The dataset in the plan's order, with all that streaming would derive set explicitly."""
    check_shared_memory(planned.order.epoch_size)
    return open_dataset(
        _shard_sources(config, planned, sources.train, planned.order),
        order=planned.order,
        batch_size=planned.micro_batch,
        settings=_read_settings(config, planned),
    )


def validation_sets(
    config: Config, planned: Plan, sources: DataSources
) -> dict[str, ValidationSet]:
    """One fixed set for each validation stream."""
    return {
        name: _holdout(config, planned, name, held)
        for name, held in sources.validation_sets.items()
    }


def _holdout(config: Config, planned: Plan, name: str, held: Sequence[DataSource]) -> ValidationSet:
    counts = tuple(source.facts.samples for source in held)
    order = Order(global_batch=1, drawn=counts, canonical_nodes=1, shuffle=False)
    dataset = open_dataset(
        _shard_sources(config, planned, held, order),
        order=order,
        batch_size=planned.micro_batch,
        settings=_read_settings(config, planned),
    )
    return ValidationSet(
        dataset,
        samples=planned.validation_samples[name],
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


def _tokens_per_byte(held: Sequence[DataSource]) -> float | None:
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
    config: Config, planned: Plan, sources: Sequence[DataSource], order: Order
) -> list[ShardSource]:
    """Where each stream's shards are on this node. Every rank calls this in the same order."""
    placed = [
        set_up_cache(
            source.store,
            source.index,
            stream=source.config,
            cache=config.data.cache,
            drawn=drawn,
            run=str(config.run.dir),
            world=planned.world,
        )
        for source, drawn in zip(sources, order.drawn, strict=True)
    ]
    needs = [place.requirement for place in placed if place.requirement is not None]
    window = shuffle_window_bytes(order, [s.index for s in sources], planned.world.nodes)
    for line in check_space(needs, limit=config.data.cache.limit, window_bytes=window):
        log.warning(line)
    return [place.source for place in placed]
