"""Configuration -> `Job`. The only wiring: every part of a run is made here, in the order in which
it must be.

facts -> plan -> launch -> owner -> model -> checkpoint -> data -> job
"""

from __future__ import annotations

import contextlib
import os
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch

from stream_pretrain.checkpoint.lease import Lease, hold_lease
from stream_pretrain.checkpoint.save import Checkpoints
from stream_pretrain.checkpoint.state import TrainState
from stream_pretrain.config.sections import Config
from stream_pretrain.data.fingerprint import fingerprint
from stream_pretrain.data.identity import check_world, library_version
from stream_pretrain.data.position import EpochClock
from stream_pretrain.data.stream import EpochStream, LoaderSettings
from stream_pretrain.errors import ConfigError, Fault
from stream_pretrain.model.architecture import resolve
from stream_pretrain.model.build import check_document_mask, model_facts
from stream_pretrain.model.tokenizers import tokenizer_faults
from stream_pretrain.observe.console import StatusLine
from stream_pretrain.observe.jsonl import MetricsFile
from stream_pretrain.observe.observer import Goal, Observer
from stream_pretrain.observe.throughput import Meter
from stream_pretrain.optim.build import check_optimizer
from stream_pretrain.optim.schedule import Schedule
from stream_pretrain.plan import Plan, plan, sequence_length
from stream_pretrain.runtime.control import Control
from stream_pretrain.runtime.launch import compute_faults, launch, requested_world
from stream_pretrain.runtime.peak import device_name, peak_flops
from stream_pretrain.runtime.stop import Deadline, SignalFlag
from stream_pretrain.schema import World
from stream_pretrain.train import continuity, rundir
from stream_pretrain.train.datasets import holdouts, training_dataset
from stream_pretrain.train.gather import Sources, gather, tokenizer_json
from stream_pretrain.train.job import Cadence, Job, Policy
from stream_pretrain.train.loggers import logger_faults, open_sinks
from stream_pretrain.train.network import SHARDED, Network, make_network
from stream_pretrain.train.spikes import SpikeRule
from stream_pretrain.train.step import Updater

if TYPE_CHECKING:
    from lightning.fabric import Fabric

    from stream_pretrain.storage.store import Store

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What is known before any process is launched: it costs no more than reading indexes."""

    config: Config
    sources: Sources
    plan: Plan


def prepare(config: Config) -> Prepared:
    """Gather facts and derive the plan; every fault of both together with what was found.

    Raises:
        ConfigError: what does not fit. Nothing was started.
    """
    compute = config.compute
    world = requested_world(compute)
    faults = [
        *logger_faults(config.logging.loggers),
        *check_optimizer(config.optimizer, sharded=compute.strategy in SHARDED),
        *compute_faults(compute, world),
    ]
    sources = collected(lambda: gather(config), faults)
    architecture = collected(lambda: resolve(config.model), faults)
    if sources is None or architecture is None:
        raise ConfigError.of(faults)
    streams = [source.facts for source in sources.train]
    held = {name: [s.facts for s in found] for name, found in sources.holdouts.items()}
    faults += check_document_mask(config.model, eos_id_of(sources))
    faults += _init_from_faults(config, sources)
    model = model_facts(config.model, seq_len=sequence_length(config, streams))
    planned = plan(config, world, streams, held, model, others=faults)
    return Prepared(config=config, sources=sources, plan=planned)


def _init_from_faults(config: Config, sources: Sources) -> list[Fault]:
    """Weights to go on from must know the data's ids."""
    if config.model.init_from is None:
        return []
    of_data = tokenizer_json(sources.train[0], config)
    return [] if of_data is None else tokenizer_faults(Path(config.model.init_from), of_data)


def collected(work: Callable[[], _T], faults: list[Fault]) -> _T | None:
    """What `work` gives; None where it is refused, its faults then are among `faults`."""
    try:
        return work()
    except ConfigError as error:
        faults.extend(error.faults)
        if not error.faults:
            raise
        return None


def eos_id_of(sources: Sources) -> int | None:
    """The end-of-text id of the training data, whose streams have one tokenizer."""
    card = sources.train[0].facts.card
    return card.eos_id if card else None


@contextlib.contextmanager
def assembled(prepared: Prepared) -> Iterator[Job]:
    """Launch, make every part, restore, hand over a `Job`; let go of everything afterwards."""
    config = prepared.config
    if config.compute.threads is not None:
        torch.set_num_threads(config.compute.threads)
    fabric, world = launch(config.compute)
    check_world(world)
    with contextlib.ExitStack() as cleanup:
        signals = SignalFlag()
        signals.install()
        cleanup.callback(signals.remove)
        control = Control(world)
        run = rundir.open_run(config)
        leases: list[Lease] = []
        control.leader_first(world, partial(_own, cleanup, config, run, leases))
        yield _job(prepared, fabric, world, control, run, signals, cleanup, leases)


def _own(cleanup: contextlib.ExitStack, config: Config, run: Store, leases: list[Lease]) -> None:
    """Become the run directory's owner; `leases` gets what a receipt must confirm first."""
    rundir.check_fresh(config, run)
    leases.append(cleanup.enter_context(hold_lease(run, say=print_warning)))


def _job(
    prepared: Prepared,
    fabric: Fabric,
    world: World,
    control: Control,
    run: Store,
    signals: SignalFlag,
    cleanup: contextlib.ExitStack,
    leases: Sequence[Lease],
) -> Job:
    config, sources = prepared.config, prepared.sources
    planned = prepared.plan.seen_from(world)
    network = make_network(config, fabric, seq_len=planned.seq_len, eos_id=eos_id_of(sources))
    staging = rundir.staging_directory(config, run)
    cadence = Cadence(
        plan=planned,
        read_every_step=config.optimizer.on_spike == "skip",
        save_every_s=config.checkpoint.every_time,
    )
    observer = _observer(config, planned, run, staging, cadence, fabric)
    cleanup.callback(observer.close)
    checkpoints = _checkpoints(prepared, network, control, run, staging, world, observer, leases)
    cleanup.callback(checkpoints.close)
    state, resumed = _state(config, planned, checkpoints, observer, network)
    updater = _updater(config, planned, fabric, network, control)
    updater.loss_scale.load(state.precision)
    if not _is_finished(planned, state):
        _announce(config, run, observer, state, fabric, staging, resumed=resumed)
    return Job(
        plan=planned,
        state=state,
        run=run,
        fabric=fabric,
        model=network.model,
        stream=_stream(config, planned, sources, state, fabric, cleanup),
        updater=updater,
        schedule=_schedule(config, planned),
        holdouts=holdouts(config, planned, sources),
        checkpoints=checkpoints,
        observer=observer,
        control=control,
        signals=signals,
        deadline=Deadline(_scheduler_deadline()),
        cadence=cadence,
        policy=_policy(config, state),
    )


def _policy(config: Config, state: TrainState) -> Policy:
    """What a bad step does; the statistics of losses are the state's own."""
    optimizer = config.optimizer
    spikes = SpikeRule(
        sigma=optimizer.spike_sigma, window=optimizer.spike_window, record=state.spike
    )
    return Policy(
        stop_on_nonfinite=optimizer.on_nonfinite == "stop",
        on_spike=optimizer.on_spike,
        spikes=spikes if optimizer.on_spike is not None else None,
    )


def _announce(
    config: Config,
    run: Store,
    observer: Observer,
    state: TrainState,
    fabric: Fabric,
    staging: Path,
    *,
    resumed: bool,
) -> None:
    """Write down that a process begins, and with what. A finished run that is started again writes
    nothing.
    """
    sinks = []
    if fabric.is_global_zero:
        name = rundir.write_config(config, run, {"fingerprint": state.fingerprint["digest"]})
        state.phases[-1].setdefault("config", name)
        sinks = open_sinks(
            config.logging.loggers,
            directory=(run.path if run.is_local else staging) / "logs",
            run_id=state.run_id,
            name=config.run.label,
            project=config.logging.project,
        )
    observer.start(
        step=state.step,
        tokens=state.tokens,
        resumed=resumed,
        sinks=sinks,
        versions=rundir.versions(),
        fingerprint=state.fingerprint["digest"],
        world_size=fabric.world_size,
        device=device_name(fabric.device),
        threads=torch.get_num_threads(),
        precision=config.compute.precision,
        strategy=config.compute.strategy,
        run_id=state.run_id,
        phase=state.phase,
    )


def _state(
    config: Config, planned: Plan, checkpoints: Checkpoints, observer: Observer, network: Network
) -> tuple[TrainState, bool]:
    """The newest whole checkpoint's state, after its tensors are in place; or a fresh one."""
    data = fingerprint(planned, library_version())
    training = continuity.training_fields(config, planned)
    found = checkpoints.find(config.run.resume)
    if found is None:
        network.fill()
        state = TrainState(run_id=uuid.uuid4().hex, world_size=planned.world.world_size)
        continuity.begin(state, data, training)
        return state, False
    state = checkpoints.state_of(found)
    for line in continuity.go_on(state, data, training, config):
        observer.say(f"accepted: {line}")
    checkpoints.restore(found)
    state.world_size = planned.world.world_size
    return state, True


def _is_finished(planned: Plan, state: TrainState) -> bool:
    return planned.total_steps is not None and state.step >= planned.total_steps


def _checkpoints(
    prepared: Prepared,
    network: Network,
    control: Control,
    run: Store,
    staging: Path,
    world: World,
    observer: Observer,
    leases: Sequence[Lease],
) -> Checkpoints:
    config = prepared.config
    extras = None
    if world.is_leader:
        extras = rundir.make_extras(staging, prepared.sources, config, network.model_config)
    publish = None if run.is_local else partial(_upload_metrics, run)
    return Checkpoints(
        run=run,
        staging=staging,
        config=config.checkpoint,
        world=world,
        group=control.new_group(),
        model=network.model,
        optimizer=network.optimizer,
        extras=extras,
        before_receipt=partial(_before_receipt, observer, publish, leases),
        warn=observer.say,
        seed=config.run.seed,
    )


def _before_receipt(
    observer: Observer, publish: Callable[[Path], None] | None, leases: Sequence[Lease]
) -> None:
    """Metrics are safe, and the run is still ours: only then may a checkpoint exist."""
    observer.sync(publish)
    for lease in leases:
        lease.confirm()


def print_warning(message: str) -> None:
    """A line on stderr, before there is an observer."""
    print(message, file=sys.stderr, flush=True)


def _upload_metrics(run: Store, path: Path) -> None:
    run.upload(path, rundir.METRICS_NAME)


def _observer(
    config: Config, planned: Plan, run: Store, staging: Path, cadence: Cadence, fabric: Fabric
) -> Observer:
    meter = Meter(
        flops_per_token=planned.model.flops_per_token,
        peak_flops=_peak_flops(config, fabric),
    )
    if not planned.world.is_leader:
        return Observer(meter=meter, log_due=cadence.read_due)
    return Observer(
        meter=meter,
        log_due=cadence.read_due,
        metrics=MetricsFile(rundir.local_metrics(run, staging)),
        console=StatusLine(),
        goal=Goal(steps=planned.total_steps, tokens=planned.total_tokens),
    )


def _peak_flops(config: Config, fabric: Fabric) -> float | None:
    """Of all devices of the run together, where one device's is given or known."""
    compute = config.compute
    one = compute.peak_flops or peak_flops(device_name(fabric.device), compute.precision)
    return None if one is None else one * fabric.world_size


def _stream(
    config: Config,
    planned: Plan,
    sources: Sources,
    state: TrainState,
    fabric: Fabric,
    cleanup: contextlib.ExitStack,
) -> EpochStream:
    clock = EpochClock(
        global_batch=planned.global_batch,
        steps_per_epoch=planned.steps_per_epoch,
        num_canonical_nodes=planned.order.canonical_nodes,
        shuffle_seed=planned.order.shuffle_seed,
    )
    settings = LoaderSettings(
        micro_batch=planned.micro_batch,
        micro_steps=planned.micro_steps,
        workers=config.data.workers,
        pin_memory=fabric.device.type == "cuda",
    )
    stream = EpochStream(
        training_dataset(config, planned, sources),
        clock,
        settings,
        state.data_step - state.phase_start,
    )
    cleanup.callback(stream.close_epoch)
    return stream


def _updater(
    config: Config, planned: Plan, fabric: Fabric, network: Network, control: Control
) -> Updater:
    starts, total = [], 0
    for facts in planned.streams:
        starts.append(total)
        total += facts.samples
    return Updater(
        fabric=fabric,
        model=network.model,
        optimizer=network.optimizer,
        control=control,
        tokens_per_step=planned.tokens_per_step,
        clip_norm=config.optimizer.clip_norm,
        stream_starts=starts,
    )


def _schedule(config: Config, planned: Plan) -> Schedule:
    return Schedule(
        kind=config.schedule.kind,
        peak=config.optimizer.lr,
        floor=config.schedule.min_lr,
        warmup_steps=planned.warmup_steps,
        total_steps=planned.total_steps,
        decay_steps=planned.decay_steps,
    )


def _scheduler_deadline() -> float | None:
    """SLURM's end time of this job, seconds since 1970, where it is known."""
    end = os.environ.get("SLURM_JOB_END_TIME", "")
    return float(end) if end.isdigit() else None
