"""Derive every number of a run from its configuration, world, streams and model.

Steps per epoch, gradient accumulation and warm-up are computed here and nowhere else. All faults
are raised together in one `ConfigError`, each with its key, its value and values that would be
accepted. `plan` is a pure function: it reads no file and starts nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from stream_pretrain.config.sections import Config
from stream_pretrain.errors import ConfigError, Fault
from stream_pretrain.order import (
    Order,
    canonical_nodes,
    samples_drawn,
    shuffle_block,
    stratified_samples,
)
from stream_pretrain.plan_checks import check_chunk, check_model, check_seq_len, check_tokenizers
from stream_pretrain.run_length import count_total_steps, schedule_steps
from stream_pretrain.schema import ModelFacts, StreamFacts, World


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The derived numbers of a run. Steps count optimizer updates, tokens count targets.

    `total_steps` is `None` if only `stop.max_time` ends the run. `micro_steps` is the number of
    micro-batches per rank and step (gradient accumulation). `validation_samples` has the number of
    samples per validation set.
    """

    world: World
    model: ModelFacts
    streams: tuple[StreamFacts, ...]
    validation_sets: Mapping[str, tuple[StreamFacts, ...]]
    order: Order
    seq_len: int
    global_batch: int
    micro_batch: int
    micro_steps: int
    total_steps: int | None
    warmup_steps: int
    decay_steps: int | None
    max_seconds: float | None
    validation_samples: Mapping[str, int]
    evaluate_every: int | None
    evaluate_at_start: bool
    evaluate_at_end: bool
    save_every: int | None
    log_every: int

    @property
    def tokens_per_step(self) -> int:
        """Targets in a global batch."""
        return self.global_batch * self.seq_len

    @property
    def steps_per_epoch(self) -> int:
        """Global batches in an epoch."""
        return self.order.steps_per_epoch

    @property
    def stream_keys(self) -> tuple[str, ...]:
        """Keys of the sample counters: a stream's content, so renaming it keeps its count."""
        digests = [facts.index_digest for facts in self.streams]
        return tuple(
            digest if (twins := digests[:i].count(digest)) == 0 else f"{digest}#{twins + 1}"
            for i, digest in enumerate(digests)
        )

    @property
    def total_tokens(self) -> int | None:
        """Targets of the whole run; None if its length is not known."""
        return None if self.total_steps is None else self.total_steps * self.tokens_per_step

    def with_world(self, world: World) -> Plan:
        """Return the same plan for another rank of the same world."""
        return replace(self, world=world)

    def for_one_process(self) -> Plan:
        """Return the same plan for a single process that reads whole global batches."""
        return replace(self, world=World(), micro_batch=self.global_batch, micro_steps=1)

    def evaluation_due(self, step: int) -> bool:
        """Return whether to evaluate after `step` updates."""
        at_end = self.evaluate_at_end and step == self.total_steps
        return bool(self.validation_samples) and (at_end or _due(step, self.evaluate_every))

    def save_due(self, step: int) -> bool:
        """Return whether to save after `step` updates."""
        return _due(step, self.save_every)

    def log_due(self, step: int) -> bool:
        """Return whether to read the device's numbers and print them after `step` updates."""
        return _due(step, self.log_every) or step in (1, self.total_steps)


def plan(
    config: Config,
    world: World,
    streams: Sequence[StreamFacts],
    validation_sets: Mapping[str, Sequence[StreamFacts]],
    model: ModelFacts,
    prior_faults: Sequence[Fault] = (),
) -> Plan:
    """Derive the numbers of a run.

    Raises:
        ConfigError: it lists `prior_faults` and everything that does not fit together.
    """
    faults: list[Fault] = list(prior_faults)
    micro_batch = _micro_batch(config, world, faults)
    all_streams = [*streams, *(s for group in validation_sets.values() for s in group)]
    check_seq_len(config, all_streams, faults)
    seq_len = sequence_length(config, all_streams)
    check_tokenizers(streams, validation_sets, faults)
    check_model(model, seq_len, streams, faults)
    check_chunk(config, micro_batch * seq_len, faults)
    order = _order(config, streams, faults)
    global_batch = config.batch.global_size
    tokens_per_step = global_batch * seq_len
    total_steps = count_total_steps(config, tokens_per_step, order.steps_per_epoch)
    warmup, decay = schedule_steps(config, total_steps, tokens_per_step, faults)
    if faults:
        raise ConfigError.of(faults)
    batches = config.evaluation.batches
    return Plan(
        world=world,
        model=model,
        streams=tuple(streams),
        validation_sets={name: tuple(group) for name, group in validation_sets.items()},
        order=order,
        seq_len=seq_len,
        global_batch=global_batch,
        micro_batch=micro_batch,
        micro_steps=global_batch // (world.world_size * micro_batch),
        total_steps=total_steps,
        warmup_steps=warmup,
        decay_steps=decay,
        max_seconds=config.stop.max_time,
        validation_samples={
            name: min(sum(s.samples for s in group), batches * global_batch if batches else 1 << 62)
            for name, group in validation_sets.items()
        },
        evaluate_every=config.evaluation.every,
        evaluate_at_start=config.evaluation.at_start,
        evaluate_at_end=config.evaluation.at_end,
        save_every=config.checkpoint.every,
        log_every=config.logging.every,
    )


def _due(step: int, every: int | None) -> bool:
    return every is not None and step > 0 and step % every == 0


def _micro_batch(config: Config, world: World, faults: list[Fault]) -> int:
    """Return the samples per rank and forward pass; they must divide a rank's share of a batch."""
    size = config.batch.global_size
    if size % world.world_size:
        faults.append(
            Fault(
                path="batch.global_size",
                found=str(size),
                remedy=f"must be a multiple of the {world.world_size} ranks; nearest: "
                f"{_nearest_multiples(size, world.world_size)}",
            )
        )
        return 1
    share = size // world.world_size
    micro = config.batch.micro_size or share
    if share % micro:
        faults.append(
            Fault(
                path="batch.micro_size",
                found=str(micro),
                remedy=f"must divide the {share} samples of a rank (global_size {size} over "
                f"{world.world_size} ranks); one of {_shortened(_divisors(share))}",
            )
        )
        return 1
    return micro


def sequence_length(config: Config, streams: Sequence[StreamFacts]) -> int:
    """Return the inputs per sample: those of the configuration, else those of the rows."""
    return config.data.seq_len or min(stream.row_ids - 1 for stream in streams)


def _order(config: Config, streams: Sequence[StreamFacts], faults: list[Fault]) -> Order:
    """Return the order of the training data with every setting explicit."""
    size = config.batch.global_size
    shuffle = config.data.shuffle
    nodes = shuffle.canonical_nodes or canonical_nodes(size)
    if size % nodes:
        faults.append(
            Fault(
                path="data.shuffle.canonical_nodes",
                found=str(nodes),
                remedy=f"must divide batch.global_size {size}; one of "
                f"{_shortened(_divisors(size))}",
            )
        )
    drawn = samples_drawn(
        [s.samples for s in streams],
        size,
        weights=[s.weight for s in config.data.train],
        repeats=[s.repeat for s in config.data.train],
    )
    if config.data.batching == "stratified":
        weighted = config.data.train[0].weight is not None
        drawn = stratified_samples(drawn, size, None if weighted else drawn)
        nodes = _stratified_canonical_nodes(config, faults)
        _check_stratified_block(config, drawn, faults)
    if not any(drawn):
        faults.append(
            Fault(
                path="batch.global_size",
                found=str(size),
                remedy=f"the training data has {sum(s.samples for s in streams)} samples, less "
                "than one global batch; lower it, or convert more text or shorter samples",
            )
        )
    unit = "a step" if config.data.batching == "stratified" else "an epoch"
    for stream, count in zip(streams, drawn, strict=True):
        if any(drawn) and count == 0:
            faults.append(
                Fault(
                    path="data.train",
                    found=stream.name,
                    remedy=f"its share of {unit} is less than one sample; raise its weight or "
                    "leave it out",
                )
            )
    return Order(
        global_batch=size,
        drawn=drawn,
        canonical_nodes=nodes,
        shuffle=shuffle.algo != "none",
        shuffle_algo="py1e" if shuffle.algo == "none" else shuffle.algo,
        shuffle_block_size=shuffle.block_size
        or shuffle_block(nodes, [s.samples / s.shards for s in streams]),
        shuffle_seed=config.run.seed if shuffle.seed is None else shuffle.seed,
        sampling_granularity=shuffle.sampling_granularity,
        batching_method=config.data.batching,
    )


def _stratified_canonical_nodes(config: Config, faults: list[Fault]) -> int:
    """Return 1: stratified batching builds each global batch as a whole, not per canonical node."""
    nodes = config.data.shuffle.canonical_nodes
    if nodes not in (None, 1):
        faults.append(
            Fault(
                path="data.shuffle.canonical_nodes",
                found=str(nodes),
                remedy="has no effect with data.batching stratified; leave it out",
            )
        )
    return 1


def _check_stratified_block(config: Config, drawn: Sequence[int], faults: list[Fault]) -> None:
    """Check that each stream's share of a shuffle block holds at least two samples."""
    size = config.data.shuffle.block_size
    smallest = math.ceil(2 * sum(drawn) / min(drawn)) + 1 if all(drawn) else 0
    if size is not None and size < smallest:
        faults.append(
            Fault(
                path="data.shuffle.block_size",
                found=str(size),
                remedy=f"each stream must have two samples of a block; at least {smallest}",
            )
        )


def _nearest_multiples(value: int, factor: int) -> str:
    below = value // factor * factor
    return f"{below} or {below + factor}" if below else str(factor)


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def _shortened(values: Sequence[int]) -> str:
    if len(values) <= 8:
        return ", ".join(map(str, values))
    return f"{', '.join(map(str, values[:4]))}, …, {', '.join(map(str, values[-3:]))}"
