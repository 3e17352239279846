"""Find settings that contradict one another.

Each function takes a `Config`, or the valid fields of one, and yields faults. It reads only the
keys that it needs, so that it also runs if other keys are invalid. A value that is equal to its
default never counts as given, so that a resolved configuration is always accepted. Data and devices
are checked elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from stream_pretrain.config.types import Check, TrainingDuration
from stream_pretrain.errors import Fault

if TYPE_CHECKING:
    from stream_pretrain.config.sections import Config, ScheduleConfig, StreamConfig

_BLOCK_ALGORITHMS = ("py1br", "py1e")
SPIKE_DEFAULTS = {"spike_sigma": 6.0, "spike_window": 128}
_NO_DECAY = ("constant", "inverse_sqrt")


def _model_is_named(c: Config) -> Iterator[Fault]:
    if not (c.model.name or c.model.config or c.model.init_from):
        yield _fault(
            "model", "", "give model.name (a LitGPT config), model.config or model.init_from"
        )


def _streams_have_a_location(c: Config) -> Iterator[Fault]:
    for path, stream in _streams(c):
        if not (stream.remote or stream.local):
            yield _fault(
                path, "", "give remote (URL or path to fetch from) or local (the data itself)"
            )
        if stream.remote and stream.remote == stream.local:
            yield _fault(f"{path}.local", repr(stream.local), "is remote itself: leave one out")
        if stream.storage is not None and not stream.remote:
            yield _fault(f"{path}.storage", "", "has no effect without remote: leave it out")


def _stream_names_are_unique(c: Config) -> Iterator[Fault]:
    for kind, streams in (("train", c.data.train), ("validation", c.data.validation)):
        counts = Counter(stream.label for stream in streams)
        for i, stream in enumerate(streams):
            if counts[stream.label] > 1 and stream.location:
                path = f"data.{kind}.{i}.name"
                yield _fault(path, repr(stream.label), "must be unique: give each stream a name")


def _weights_are_consistent(c: Config) -> Iterator[Fault]:
    weighted = [stream.weight is not None for stream in c.data.train]
    for i, stream in enumerate(c.data.train):
        if stream.repeat is not None and any(weighted):
            remedy = "has no effect beside weights: give each stream a weight, or none"
            yield _fault(f"data.train.{i}.repeat", str(stream.repeat), remedy)
        elif any(weighted) and not weighted[i]:
            yield _fault(f"data.train.{i}.weight", "", "must be given, as other streams have one")
    if weighted == [True]:
        remedy = "has no effect on a single stream: leave it out, or use repeat"
        yield _fault("data.train.0.weight", str(c.data.train[0].weight), remedy)
    for i, stream in enumerate(c.data.validation):
        for key in ("weight", "repeat"):
            if (value := getattr(stream, key)) is not None:
                remedy = "has no effect on validation: each set is measured on its own"
                yield _fault(f"data.validation.{i}.{key}", str(value), remedy)


def _cache_limit_is_safe(c: Config) -> Iterator[Fault]:
    streams = list(_streams(c))
    only_local = [path for path, stream in streams if stream.local and not stream.remote]
    if c.data.cache.limit is not None and only_local:
        remedy = f"would delete the only copy of {only_local[0]}: leave it out"
        yield _fault("data.cache.limit", str(c.data.cache.limit), remedy)


def _shuffle_keys_apply(c: Config) -> Iterator[Fault]:
    shuffle = c.data.shuffle
    if shuffle.block_size is not None and shuffle.algo not in _BLOCK_ALGORITHMS:
        remedy = f"has no effect with algo {shuffle.algo}: leave it out"
        yield _fault("data.shuffle.block_size", str(shuffle.block_size), remedy)
    if shuffle.seed is not None and shuffle.algo == "none":
        remedy = "has no effect with algo none: leave it out"
        yield _fault("data.shuffle.seed", str(shuffle.seed), remedy)


def _micro_size_divides_global_size(c: Config) -> Iterator[Fault]:
    global_size, micro_size = c.batch.global_size, c.batch.micro_size
    if micro_size is not None and global_size % micro_size:
        divisor = max(n for n in range(1, micro_size + 1) if global_size % n == 0)
        remedy = f"must divide batch.global_size ({global_size}); {divisor} does"
        yield _fault("batch.micro_size", str(micro_size), remedy)


def _run_has_a_limit(c: Config) -> Iterator[Fault]:
    stop = c.stop
    if not (stop.max_tokens or stop.max_steps or stop.max_epochs or stop.max_time):
        yield _fault("stop", "", "give max_tokens, max_steps, max_epochs or max_time")


def _schedule_keys_apply(c: Config) -> Iterator[Fault]:
    schedule = c.schedule
    if schedule.decay is not None and schedule.kind in _NO_DECAY:
        remedy = f"has no effect with kind {schedule.kind}: leave it out, or use wsd"
        yield _fault("schedule.decay", str(schedule.decay.to_yaml()), remedy)
    if schedule.decay is None and schedule.kind == "wsd":
        yield _fault("schedule.decay", "", "must be given with kind wsd, such as 0.2 of the run")
    if schedule.min_lr and schedule.kind == "constant":
        remedy = "has no effect with kind constant: leave it out"
        yield _fault("schedule.min_lr", str(schedule.min_lr), remedy)


def _rates_are_ordered(c: Config) -> Iterator[Fault]:
    if c.schedule.min_lr > c.optimizer.lr:
        remedy = f"must not be above optimizer.lr ({c.optimizer.lr})"
        yield _fault("schedule.min_lr", str(c.schedule.min_lr), remedy)


def _durations_fit_the_run(c: Config) -> Iterator[Fault]:
    warmup, decay = c.schedule.warmup, c.schedule.decay
    if decay and warmup.unit == decay.unit == "fraction" and warmup.amount + decay.amount > 1:
        remedy = f"with warmup {warmup.amount} more than the whole run"
        yield _fault("schedule.decay", str(decay.amount), remedy)


def _fractions_have_a_run_length(c: Config) -> Iterator[Fault]:
    stop = c.stop
    if stop.max_time is None or stop.max_tokens or stop.max_steps or stop.max_epochs:
        return
    for key, duration in _durations(c.schedule):
        if duration is None or duration.unit == "fraction":
            value = "" if duration is None else str(duration.amount)
            remedy = (
                "needs the length of the run, which stop.max_time alone does not give: "
                "write it in steps or tokens, or give another stop limit"
            )
            yield _fault(f"schedule.{key}", value, remedy)


def _spike_keys_apply(c: Config) -> Iterator[Fault]:
    if c.optimizer.on_spike is not None:
        return
    for key, default in SPIKE_DEFAULTS.items():
        if (value := getattr(c.optimizer, key)) != default:
            remedy = "has no effect without optimizer.on_spike"
            yield _fault(f"optimizer.{key}", str(value), remedy)


def _rewind_has_saves(c: Config) -> Iterator[Fault]:
    saves = c.checkpoint.every or c.checkpoint.every_time
    if c.optimizer.on_spike == "rewind" and not saves:
        remedy = "needs saves: give checkpoint.every or checkpoint.every_time"
        yield _fault("optimizer.on_spike", "'rewind'", remedy)


def _optimizer_keys_apply(c: Config) -> Iterator[Fault]:
    if c.optimizer.decay_on and not c.optimizer.weight_decay:
        remedy = "has no effect with weight_decay 0: leave it out"
        yield _fault("optimizer.decay_on", str(list(c.optimizer.decay_on)), remedy)


def _evaluation_keys_apply(c: Config) -> Iterator[Fault]:
    evaluation = c.evaluation
    if evaluation.every or evaluation.at_start or evaluation.at_end:
        return
    if evaluation.batches is not None:
        remedy = "has no effect: every, at_start and at_end are all off"
        yield _fault("evaluation.batches", str(evaluation.batches), remedy)
    if c.data.validation:
        remedy = "has no effect: evaluation.every, at_start and at_end are all off"
        yield _fault("data.validation", "", remedy)


def _keep_best_has_evaluations(c: Config) -> Iterator[Fault]:
    if c.checkpoint.keep_best and c.evaluation.every is None:
        yield _fault("checkpoint.keep_best", "True", "needs evaluation.every")


def _keep_every_matches_saves(c: Config) -> Iterator[Fault]:
    keep, every = c.checkpoint.keep_every, c.checkpoint.every
    if keep is not None and (every is None or keep % every):
        saved = "nothing is saved by steps" if every is None else f"saves are every {every} steps"
        remedy = f"must be a multiple of checkpoint.every, as {saved}"
        yield _fault("checkpoint.keep_every", str(keep), remedy)


def _logger_keys_apply(c: Config) -> Iterator[Fault]:
    loggers = c.logging.loggers
    for name, count in Counter(loggers).items():
        if count > 1:
            yield _fault("logging.loggers", str(list(loggers)), f"must name {name} once")
    if c.logging.project is not None and not {"wandb", "mlflow"} & set(loggers):
        remedy = "has no effect without wandb or mlflow in logging.loggers"
        yield _fault("logging.project", repr(c.logging.project), remedy)


def _compute_keys_apply(c: Config) -> Iterator[Fault]:
    compute = c.compute
    if compute.shard_group is not None and compute.strategy != "hsdp":
        remedy = "has no effect without compute.strategy hsdp"
        yield _fault("compute.shard_group", str(compute.shard_group), remedy)
    if compute.precision == "16-mixed" and compute.accelerator == "cpu":
        yield _fault(
            "compute.precision", "'16-mixed'", "needs a GPU; on a CPU use bf16-mixed or 32"
        )
    if compute.precision == "16-mixed" and compute.strategy in ("fsdp2", "hsdp"):
        remedy = f"has no loss scale under {compute.strategy}; use bf16-mixed, or ddp"
        yield _fault("compute.precision", "'16-mixed'", remedy)
    if compute.precision == "16-mixed" and c.optimizer.on_nonfinite == "stop":
        remedy = "would stop while 16-mixed looks for its loss scale: use skip, or bf16-mixed"
        yield _fault("optimizer.on_nonfinite", "'stop'", remedy)
    single = compute.devices == 1 and compute.nodes == 1
    if single and compute.strategy in ("fsdp2", "hsdp"):
        remedy = "needs more than one device (compute.devices, compute.nodes)"
        yield _fault("compute.strategy", repr(compute.strategy), remedy)


def _storage_keys_agree(c: Config) -> Iterator[Fault]:
    sections = [("storage", c.storage)]
    sections += [(f"{path}.storage", s.storage) for path, s in _streams(c) if s.storage]
    for path, storage in sections:
        if not storage.anonymous:
            continue
        if storage.profile is not None:
            remedy = "has no effect with anonymous: leave one of them out"
            yield _fault(f"{path}.profile", repr(storage.profile), remedy)
        if storage.requester_pays:
            remedy = "is not possible with anonymous: the requester must be known"
            yield _fault(f"{path}.requester_pays", "True", remedy)


def _streams(c: Config) -> Iterator[tuple[str, StreamConfig]]:
    for i, stream in enumerate(c.data.train):
        yield f"data.train.{i}", stream
    for i, stream in enumerate(c.data.validation):
        yield f"data.validation.{i}", stream


def _durations(schedule: ScheduleConfig) -> Iterator[tuple[str, TrainingDuration | None]]:
    """Yield the durations that may depend on the length of the run."""
    yield "warmup", schedule.warmup
    if schedule.kind not in _NO_DECAY:
        yield "decay", schedule.decay


def _fault(path: str, found: str, remedy: str) -> Fault:
    return Fault(path=path, found=found, remedy=remedy)


CHECKS: tuple[Check, ...] = (
    _model_is_named,
    _streams_have_a_location,
    _stream_names_are_unique,
    _weights_are_consistent,
    _cache_limit_is_safe,
    _shuffle_keys_apply,
    _micro_size_divides_global_size,
    _run_has_a_limit,
    _schedule_keys_apply,
    _rates_are_ordered,
    _durations_fit_the_run,
    _fractions_have_a_run_length,
    _spike_keys_apply,
    _rewind_has_saves,
    _optimizer_keys_apply,
    _evaluation_keys_apply,
    _keep_best_has_evaluations,
    _keep_every_matches_saves,
    _logger_keys_apply,
    _compute_keys_apply,
    _storage_keys_agree,
)
