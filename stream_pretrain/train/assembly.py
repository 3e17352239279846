"""Configuration -> `Trainer`. The only wiring: every part of a run is made here, in the order in
which it must be.

facts -> plan -> launch -> owner -> model -> checkpoint -> data -> job
"""

from __future__ import annotations

import contextlib
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch

from stream_pretrain.checkpoint.checkpoint_dir import CheckpointDir
from stream_pretrain.checkpoint.lease import Lease, hold_lease
from stream_pretrain.checkpoint.save import Checkpoints
from stream_pretrain.checkpoint.state import TrainState
from stream_pretrain.config.sections import Config
from stream_pretrain.data.node.world_check import check_world, library_version
from stream_pretrain.data.sample_order.fingerprint import fingerprint
from stream_pretrain.errors import CheckpointError
from stream_pretrain.observe.observer import Observer
from stream_pretrain.plan import Plan
from stream_pretrain.runtime.launch import launch
from stream_pretrain.runtime.peak_flops import device_name
from stream_pretrain.runtime.step_sync import StepSync
from stream_pretrain.runtime.stop import Deadline, SignalFlag
from stream_pretrain.schema import World
from stream_pretrain.train import resume_checks, run_dir
from stream_pretrain.train.datasets import validation_sets
from stream_pretrain.train.factories import (
    make_observer,
    make_policy,
    make_schedule,
    make_stream,
    make_updater,
    scheduler_deadline,
)
from stream_pretrain.train.loggers import open_sinks
from stream_pretrain.train.model_setup import TrainableModel, set_up_model
from stream_pretrain.train.prepare import Prepared, eos_id_of
from stream_pretrain.train.trainer import StepTriggers, Trainer

if TYPE_CHECKING:
    from lightning.fabric import Fabric

    from stream_pretrain.storage.store import Store

_T = TypeVar("_T")


@contextlib.contextmanager
def assembled(prepared: Prepared, signals: SignalFlag | None = None) -> Iterator[Trainer]:
    """Launch, make every part, restore, hand over a `Trainer`; let go of everything afterwards."""
    config = prepared.config
    if config.compute.threads is not None:
        torch.set_num_threads(config.compute.threads)
    fabric, world = launch(config.compute)
    check_world(world)
    with contextlib.ExitStack() as cleanup:
        if signals is None:
            signals = SignalFlag()
            signals.install()
            cleanup.callback(signals.remove)
        control = StepSync(world)
        run = run_dir.open_run(config)
        leases: list[Lease] = []
        control.rank0_first(world, partial(_own, cleanup, config, run, leases))
        yield _job(prepared, fabric, world, control, run, signals, cleanup, leases)


def _own(cleanup: contextlib.ExitStack, config: Config, run: Store, leases: list[Lease]) -> None:
    """Become the run directory's owner; `leases` gets what a receipt must confirm first."""
    run_dir.check_fresh(config, run)
    leases.append(cleanup.enter_context(hold_lease(run, report=print_warning)))


def _job(
    prepared: Prepared,
    fabric: Fabric,
    world: World,
    control: StepSync,
    run: Store,
    signals: SignalFlag,
    cleanup: contextlib.ExitStack,
    leases: Sequence[Lease],
) -> Trainer:
    config, sources = prepared.config, prepared.sources
    planned = prepared.plan.with_world(world)
    network = set_up_model(config, fabric, seq_len=planned.seq_len, eos_id=eos_id_of(sources))
    staging = run_dir.staging_directory(config, run)
    triggers = StepTriggers(
        plan=planned,
        read_every_step=config.optimizer.on_spike == "skip",
        save_every_s=config.checkpoint.every_time,
    )
    observer = make_observer(config, planned, run, staging, triggers, fabric)
    cleanup.callback(observer.close)
    checkpoints = _checkpoints(prepared, network, control, run, staging, world, observer, leases)
    cleanup.callback(checkpoints.close)
    state, resumed = _state(config, planned, run, control, checkpoints, observer, network)
    updater = make_updater(config, planned, fabric, network, control)
    updater.loss_scale.load(state.precision)
    if not _is_finished(planned, state):
        _announce(config, run, observer, state, fabric, staging, resumed=resumed)
    held = validation_sets(config, planned, sources)
    for holdout in held.values():
        cleanup.callback(holdout.close)
    return Trainer(
        plan=planned,
        state=state,
        run=run,
        fabric=fabric,
        model=network.model,
        stream=make_stream(config, planned, sources, state, fabric, cleanup),
        updater=updater,
        schedule=make_schedule(config, planned),
        validation_sets=held,
        checkpoints=checkpoints,
        observer=observer,
        control=control,
        signals=signals,
        deadline=Deadline(scheduler_deadline()),
        triggers=triggers,
        policy=make_policy(config, state),
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
        name = run_dir.write_config(config, run, {"fingerprint": state.fingerprint["digest"]})
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
        loggers=sinks,
        versions=run_dir.versions(),
        fingerprint=state.fingerprint["digest"],
        world_size=fabric.world_size,
        device=device_name(fabric.device),
        threads=torch.get_num_threads(),
        precision=config.compute.precision,
        strategy=config.compute.strategy,
        run_id=state.run_id,
        phase=state.phase,
    )


def _check_nothing_is_lost(run: Store, observer: Observer) -> None:
    """A run whose checkpoints are all damaged is not begun again over them.

    Raises:
        CheckpointError: there are checkpoints, and none is whole.
    """
    steps = CheckpointDir(run).steps()
    if steps:
        raise CheckpointError(
            f"{run.url('checkpoints')}: none of the {len(steps)} checkpoints (the newest: step "
            f"{steps[-1]}) is whole. Restore their files, choose another run.dir, or remove them "
            "to begin again."
        )
    if run.head(run_dir.CONFIG_NAME) is not None:
        observer.print_line(
            f"{run.url()}: begun before, and without a checkpoint: starting at step 0"
        )


def _state(
    config: Config,
    planned: Plan,
    run: Store,
    control: StepSync,
    checkpoints: Checkpoints,
    observer: Observer,
    network: TrainableModel,
) -> tuple[TrainState, bool]:
    """The newest whole checkpoint's state, after its tensors are in place; or a fresh one."""
    data = fingerprint(planned, library_version())
    training = resume_checks.training_fields(config, planned)
    found = checkpoints.find(config.run.resume)
    if found is None:
        control.rank0_first(planned.world, partial(_check_nothing_is_lost, run, observer))
        network.init_weights()
        state = TrainState(run_id=uuid.uuid4().hex, world_size=planned.world.world_size)
        resume_checks.begin(state, data, training)
        return state, False
    state = checkpoints.state_of(found)
    for line in resume_checks.go_on(state, data, training, config):
        observer.print_line(f"accepted: {line}")
    checkpoints.restore(found)
    state.world_size = planned.world.world_size
    return state, True


def _is_finished(planned: Plan, state: TrainState) -> bool:
    return planned.total_steps is not None and state.step >= planned.total_steps


def _checkpoints(
    prepared: Prepared,
    network: TrainableModel,
    control: StepSync,
    run: Store,
    staging: Path,
    world: World,
    observer: Observer,
    leases: Sequence[Lease],
) -> Checkpoints:
    config = prepared.config
    extras = None
    if world.is_rank0:
        extras = run_dir.make_extras(staging, prepared.sources, config, network.model_config)
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
        warn=observer.print_line,
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
    run.upload(path, run_dir.METRICS_NAME)
