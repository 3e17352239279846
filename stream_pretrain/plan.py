"""Config, world, cards and model facts -> every derived number of a run, once. Pure: reads nothing,
starts nothing.

Nobody computes steps per epoch, accumulation or warm-up elsewhere. All faults come together in one
`ConfigError`, each with its path, what was found and values that would do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from stream_pretrain.config.sections import Config
from stream_pretrain.config.types import Span
from stream_pretrain.errors import ConfigError, Fault
from stream_pretrain.order import (
    Order,
    canonical_nodes,
    in_whole_steps,
    samples_drawn,
    shuffle_block,
)
from stream_pretrain.schema import ModelFacts, StreamFacts, World


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Derived numbers of a run. Steps count optimizer updates, tokens count targets.

    `total_steps` is `None` where only `stop.max_time` ends the run. `micro_steps` are the
    micro-batches of one rank in a step (gradient accumulation). `holdout_samples` has the
    validation samples by set.
    """

    world: World
    model: ModelFacts
    streams: tuple[StreamFacts, ...]
    holdouts: Mapping[str, tuple[StreamFacts, ...]]
    order: Order
    seq_len: int
    global_batch: int
    micro_batch: int
    micro_steps: int
    total_steps: int | None
    warmup_steps: int
    decay_steps: int | None
    max_seconds: float | None
    holdout_samples: Mapping[str, int]
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
        """What a stream is counted under: its content, so that a renamed one counts on."""
        digests = [facts.index_digest for facts in self.streams]
        return tuple(
            digest if (twin := digests[:place].count(digest)) == 0 else f"{digest}#{twin + 1}"
            for place, digest in enumerate(digests)
        )

    @property
    def total_tokens(self) -> int | None:
        """Targets of the whole run, where its length is known."""
        return None if self.total_steps is None else self.total_steps * self.tokens_per_step

    def seen_from(self, world: World) -> Plan:
        """The same plan on another rank of the same world."""
        return replace(self, world=world)

    def in_whole_batches(self) -> Plan:
        """The same plan read by one process, a global batch at a time."""
        return replace(self, world=World(), micro_batch=self.global_batch, micro_steps=1)

    def evaluation_due(self, step: int) -> bool:
        """Whether to evaluate after `step` updates: the last one included, before it is saved."""
        at_end = self.evaluate_at_end and step == self.total_steps
        return bool(self.holdout_samples) and (at_end or _due(step, self.evaluate_every))

    def save_due(self, step: int) -> bool:
        """Whether to save after `step` updates."""
        return _due(step, self.save_every)

    def log_due(self, step: int) -> bool:
        """Whether a person should see `step` on the console."""
        return _due(step, self.log_every) or step in (1, self.total_steps)


def plan(
    config: Config,
    world: World,
    streams: Sequence[StreamFacts],
    holdouts: Mapping[str, Sequence[StreamFacts]],
    model: ModelFacts,
    others: Sequence[Fault] = (),
) -> Plan:
    """Derive everything, or raise one `ConfigError` with all that does not fit, `others` first."""
    faults: list[Fault] = list(others)
    micro_batch = _micro_batch(config, world, faults)
    everything = [*streams, *(s for held in holdouts.values() for s in held)]
    _check_seq_len(config, everything, faults)
    seq_len = sequence_length(config, everything)
    _check_tokenizers(streams, holdouts, faults)
    _check_model(model, seq_len, streams, faults)
    _check_chunk(config, micro_batch * seq_len, faults)
    order = _order(config, streams, faults)
    global_batch = config.batch.global_size
    tokens_per_step = global_batch * seq_len
    total_steps = _total_steps(config, tokens_per_step, order.steps_per_epoch)
    warmup, decay = _schedule_steps(config, total_steps, tokens_per_step, faults)
    if faults:
        raise ConfigError.of(faults)
    most = config.evaluation.batches
    return Plan(
        world=world,
        model=model,
        streams=tuple(streams),
        holdouts={name: tuple(held) for name, held in holdouts.items()},
        order=order,
        seq_len=seq_len,
        global_batch=global_batch,
        micro_batch=micro_batch,
        micro_steps=global_batch // (world.world_size * micro_batch),
        total_steps=total_steps,
        warmup_steps=warmup,
        decay_steps=decay,
        max_seconds=config.stop.max_time,
        holdout_samples={
            name: min(sum(s.samples for s in held), most * global_batch if most else 1 << 62)
            for name, held in holdouts.items()
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
    """Samples per rank and forward pass; must divide a rank's share of the global batch."""
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
    """Inputs per sample: the config's, or those of the rows."""
    return config.data.seq_len or min(stream.row_ids - 1 for stream in streams)


def _check_seq_len(config: Config, streams: Sequence[StreamFacts], faults: list[Fault]) -> None:
    """Every stream must have rows of the one length, or longer ones that may be cut."""
    wanted = config.data.seq_len
    if wanted is None:
        if len({s.row_ids for s in streams}) > 1:
            rows = ", ".join(f"{s.name}: {s.row_ids - 1}" for s in streams)
            faults.append(
                Fault(
                    path="data.train",
                    found=rows,
                    remedy="all streams must have one seq_len; convert with the same --seq_len",
                )
            )
        return
    for stream in streams:
        have = stream.row_ids - 1
        if have == wanted or (config.data.truncate and have > wanted):
            continue
        remedy = (
            f"stream {stream.name} has rows of {stream.row_ids} ids, which means seq_len {have}"
        )
        if have > wanted:
            remedy += "; set that, or data.truncate: true to cut rows"
        faults.append(Fault(path="data.seq_len", found=str(wanted), remedy=remedy))


def _check_chunk(config: Config, micro_tokens: int, faults: list[Fault]) -> None:
    """A chunk that holds a whole micro-batch cuts nothing."""
    chunk = config.loss.chunk
    if chunk >= micro_tokens and not any(f.path.startswith("batch.") for f in faults):
        remedy = f"has no effect, a micro-batch has {micro_tokens} tokens; less than that, or 0"
        faults.append(Fault(path="loss.chunk", found=str(chunk), remedy=remedy))


def _check_tokenizers(
    streams: Sequence[StreamFacts],
    holdouts: Mapping[str, Sequence[StreamFacts]],
    faults: list[Fault],
) -> None:
    """All cards must speak of one tokenizer."""
    everything = [*streams, *(s for held in holdouts.values() for s in held)]
    carded = [(s.name, s.card.tokenizer_fingerprint) for s in everything if s.card is not None]
    if len({fingerprint for _, fingerprint in carded}) > 1:
        found = ", ".join(f"{name}: {fingerprint[:12]}" for name, fingerprint in carded)
        faults.append(
            Fault(
                path="data",
                found=found,
                remedy="the streams were made with different tokenizers; convert them with one",
            )
        )


def _check_model(
    model: ModelFacts, seq_len: int, streams: Sequence[StreamFacts], faults: list[Fault]
) -> None:
    """Ids must fit the embedding, rows must fit the context."""
    if seq_len > model.block_size:
        faults.append(
            Fault(
                path="model",
                found=f"{model.name}, a context of {model.block_size} tokens",
                remedy=f"the data has seq_len {seq_len}; choose a longer context or set "
                f"model.config.block_size",
            )
        )
    for stream in streams:
        if stream.card is not None and stream.card.vocab_size > model.padded_vocab_size:
            faults.append(
                Fault(
                    path="model",
                    found=f"{model.name}, {model.padded_vocab_size} embeddings",
                    remedy=f"stream {stream.name} has a vocabulary of "
                    f"{stream.card.vocab_size}; set "
                    f"model.config.padded_vocab_size to at least that",
                )
            )


def _order(config: Config, streams: Sequence[StreamFacts], faults: list[Fault]) -> Order:
    """The order of the training data, all of it explicit."""
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
        drawn = in_whole_steps(drawn, size, None if weighted else drawn)
        nodes = _one_node(config, faults)
        _check_block(config, drawn, faults)
    if not any(drawn):
        faults.append(
            Fault(
                path="batch.global_size",
                found=str(size),
                remedy=f"the training data has {sum(s.samples for s in streams)} samples, less "
                "than "
                "one global batch; lower it, or convert more text or shorter samples",
            )
        )
    whole = "a step" if config.data.batching == "stratified" else "an epoch"
    for stream, count in zip(streams, drawn, strict=True):
        if any(drawn) and count == 0:
            faults.append(
                Fault(
                    path="data.train",
                    found=stream.name,
                    remedy=f"its share of {whole} is less than one sample; raise its weight or "
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


def _one_node(config: Config, faults: list[Fault]) -> int:
    """Canonical nodes of steps that have an exact share of each stream: they are made as wholes."""
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


def _check_block(config: Config, drawn: Sequence[int], faults: list[Fault]) -> None:
    """Stratified streams shuffle in shares of a block; each must hold two samples at least."""
    size = config.data.shuffle.block_size
    least = math.ceil(2 * sum(drawn) / min(drawn)) + 1 if all(drawn) else 0
    if size is not None and size < least:
        faults.append(
            Fault(
                path="data.shuffle.block_size",
                found=str(size),
                remedy=f"each stream must have two samples of a block; at least {least}",
            )
        )


def _total_steps(config: Config, tokens_per_step: int, steps_per_epoch: int) -> int | None:
    """The first limit that a run of known length meets; tokens are rounded up to whole steps."""
    stop = config.stop
    limits = [
        stop.max_steps,
        None if stop.max_tokens is None else math.ceil(stop.max_tokens / tokens_per_step),
        None if stop.max_epochs is None else stop.max_epochs * steps_per_epoch,
    ]
    return min((limit for limit in limits if limit is not None), default=None)


def _schedule_steps(
    config: Config, total_steps: int | None, tokens_per_step: int, faults: list[Fault]
) -> tuple[int, int | None]:
    """Warm-up and decay in steps; no decay length means: to the end of the run."""
    schedule = config.schedule
    kind = schedule.kind
    open_end = total_steps is None and (kind == "wsd" or schedule.decay is None)
    if open_end and kind in ("cosine", "linear", "wsd"):
        faults.append(
            Fault(
                path="schedule.kind",
                found=kind,
                remedy="needs the length of the run; set stop.max_tokens, max_steps or "
                "max_epochs, or "
                "use constant or inverse_sqrt",
            )
        )
    if schedule.min_lr > config.optimizer.lr:
        faults.append(
            Fault(
                path="schedule.min_lr",
                found=str(schedule.min_lr),
                remedy=f"must be at most optimizer.lr {config.optimizer.lr}",
            )
        )
    steps: list[int | None] = []
    for path, span in (("schedule.warmup", schedule.warmup), ("schedule.decay", schedule.decay)):
        if span is not None and span.unit == "fraction" and span.amount and total_steps is None:
            if path == "schedule.warmup" and "warmup" not in schedule.model_fields_set:
                steps.append(0)
                continue
            remedy = "a fraction needs the length of the run; write steps or tokens"
            faults.append(Fault(path=path, found=str(span.plain()), remedy=remedy))
        steps.append(span_steps(span, total_steps or 0, tokens_per_step))
    warmup, decay = steps[0] or 0, steps[1]
    if schedule.decay is None:
        decay = None
    if total_steps is not None and warmup + (decay or 0) > total_steps:
        faults.append(
            Fault(
                path="schedule.warmup",
                found=f"{warmup} steps, with {decay or 0} of decay",
                remedy=f"the run has {total_steps} steps; shorten them or train longer",
            )
        )
    return warmup, decay


def span_steps(span: Span | None, total_steps: int, tokens_per_step: int) -> int:
    """A stretch of training in whole steps; anything above zero lasts at least one."""
    if span is None or span.amount == 0:
        return 0
    if span.unit == "steps":
        return int(span.amount)
    if span.unit == "tokens":
        return math.ceil(span.amount / tokens_per_step)
    return max(1, round(span.amount * total_steps))


def _nearest_multiples(value: int, of: int) -> str:
    below = value // of * of
    return f"{below} or {below + of}" if below else str(of)


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def _shortened(values: Sequence[int]) -> str:
    if len(values) <= 8:
        return ", ".join(map(str, values))
    return f"{', '.join(map(str, values[:4]))}, …, {', '.join(map(str, values[-3:]))}"
