"""The parts of a job that need no order among them. In: the configuration and the plan. Out:
policy, observer, stream, updater, schedule, deadline. Launches nothing, restores nothing.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from stream_pretrain.checkpoint.state import TrainState
from stream_pretrain.config.sections import Config
from stream_pretrain.data.epoch_stream import EpochStream, LoaderSettings
from stream_pretrain.data.sample_order.position import EpochClock
from stream_pretrain.observe.console import StatusLine
from stream_pretrain.observe.jsonl import MetricsFile
from stream_pretrain.observe.observer import Observer, RunLimits
from stream_pretrain.observe.throughput import Meter
from stream_pretrain.optim.schedule import Schedule
from stream_pretrain.plan import Plan
from stream_pretrain.runtime.peak_flops import device_name, peak_flops
from stream_pretrain.runtime.step_sync import StepSync
from stream_pretrain.train import run_dir
from stream_pretrain.train.data_sources import DataSources
from stream_pretrain.train.datasets import training_dataset
from stream_pretrain.train.loss_spikes import SpikeDetector
from stream_pretrain.train.model_setup import TrainableModel
from stream_pretrain.train.step import Updater
from stream_pretrain.train.trainer import BadStepPolicy, StepTriggers

if TYPE_CHECKING:
    from lightning.fabric import Fabric

    from stream_pretrain.storage.store import Store

_T = TypeVar("_T")


def make_policy(config: Config, state: TrainState) -> BadStepPolicy:
    """What a bad step does; the statistics of losses are the state's own."""
    optimizer = config.optimizer
    spikes = SpikeDetector(
        sigma=optimizer.spike_sigma, window=optimizer.spike_window, record=state.spike
    )
    return BadStepPolicy(
        stop_on_nonfinite=optimizer.on_nonfinite == "stop",
        on_spike=optimizer.on_spike,
        spikes=spikes if optimizer.on_spike is not None else None,
    )


def make_observer(
    config: Config, planned: Plan, run: Store, staging: Path, triggers: StepTriggers, fabric: Fabric
) -> Observer:
    meter = Meter(
        flops_per_token=planned.model.flops_per_token,
        peak_flops=_peak_flops(config, fabric),
    )
    if not planned.world.is_rank0:
        return Observer(meter=meter, log_due=triggers.read_due)
    return Observer(
        meter=meter,
        log_due=triggers.read_due,
        metrics=MetricsFile(run_dir.local_metrics(run, staging)),
        console=StatusLine(),
        limits=RunLimits(steps=planned.total_steps, tokens=planned.total_tokens),
    )


def _peak_flops(config: Config, fabric: Fabric) -> float | None:
    """Of all devices of the run together, where one device's is given or known."""
    compute = config.compute
    one = compute.peak_flops or peak_flops(device_name(fabric.device), compute.precision)
    return None if one is None else one * fabric.world_size


def make_stream(
    config: Config,
    planned: Plan,
    sources: DataSources,
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
    dataset = training_dataset(config, planned, sources)
    cleanup.callback(dataset.close)
    stream = EpochStream(
        dataset,
        clock,
        settings,
        state.data_step - state.phase_start,
    )
    cleanup.callback(stream.close_epoch)
    return stream


def make_updater(
    config: Config, planned: Plan, fabric: Fabric, network: TrainableModel, control: StepSync
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


def make_schedule(config: Config, planned: Plan) -> Schedule:
    return Schedule(
        kind=config.schedule.kind,
        peak=config.optimizer.lr,
        floor=config.schedule.min_lr,
        warmup_steps=planned.warmup_steps,
        total_steps=planned.total_steps,
        decay_steps=planned.decay_steps,
    )


def scheduler_deadline() -> float | None:
    """SLURM's end time of this job, seconds since 1970, where it is known."""
    end = os.environ.get("SLURM_JOB_END_TIME", "")
    return float(end) if end.isdigit() else None
