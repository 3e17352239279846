"""A run in motion: the verbs of the loop. In: assembled parts. Out: changed state. Wires nothing,
decides little.

Assembly builds a `Trainer`; the loop calls its verbs in order. All that a restart needs is in
`state`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from stream_pretrain.data.batch import Batch
from stream_pretrain.data.sample_order.digest import as_unsigned, chain
from stream_pretrain.data.validation_set import ValidationSet
from stream_pretrain.errors import DataError, TrainingError
from stream_pretrain.observe.events import StepRecord
from stream_pretrain.train.evaluate import evaluate
from stream_pretrain.train.loss_spikes import SpikeDetector
from stream_pretrain.train.step import StepResult, Updater

if TYPE_CHECKING:
    from lightning.fabric import Fabric
    from torch import nn

    from stream_pretrain.checkpoint.save import Checkpoints
    from stream_pretrain.checkpoint.state import TrainState
    from stream_pretrain.data.epoch_stream import EpochStream
    from stream_pretrain.observe.observer import Observer
    from stream_pretrain.optim.schedule import Schedule
    from stream_pretrain.plan import Plan
    from stream_pretrain.runtime.step_sync import StepSync
    from stream_pretrain.runtime.stop import Deadline, SignalFlag
    from stream_pretrain.storage.store import Store

COMPLETE = "complete"
TIME_UP = "max_time"
MOST_REWINDS = 16

OnSpike = Literal["stop", "skip", "rewind"]


@dataclass(kw_only=True)
class StepTriggers:
    """What is due at the present step. Shared with the observer: what is saved must have been read
    first.
    """

    plan: Plan
    read_every_step: bool = False
    save_every_s: float | None = None
    save_now: bool = False

    def read_due(self, step: int) -> bool:
        """Whether the host looks at the device's numbers after `step` updates."""
        return self.read_every_step or self.save_now or self.plan.log_due(step)


@dataclass(frozen=True, kw_only=True)
class BadStepPolicy:
    """What a bad step does. `spikes` is None where losses are not judged."""

    stop_on_nonfinite: bool = False
    on_spike: OnSpike | None = None
    spikes: SpikeDetector | None = None


@dataclass(kw_only=True)
class Trainer:
    """Everything that the loop speaks of. `state` is the only part that a checkpoint holds as it
    is.
    """

    plan: Plan
    state: TrainState
    run: Store
    fabric: Fabric
    model: nn.Module
    stream: EpochStream
    updater: Updater
    schedule: Schedule
    validation_sets: Mapping[str, ValidationSet]
    checkpoints: Checkpoints
    observer: Observer
    control: StepSync
    signals: SignalFlag
    deadline: Deadline
    triggers: StepTriggers
    policy: BadStepPolicy = BadStepPolicy()
    clock: Callable[[], float] = time.monotonic
    _votes: tuple[int, int] = field(default=(0, 0), init=False)
    _begun: float = field(default=0.0, init=False)
    _last_save: float = field(default=0.0, init=False)
    _seconds_before: float = field(default=0.0, init=False)
    _halt: str | None = field(default=None, init=False)
    _spike: tuple[int, int] | None = field(default=None, init=False)
    _rewinds: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._begun = self._last_save = self.clock()
        self._seconds_before = self.state.seconds

    # ---- the verbs of the loop

    def stop_reason(self) -> str | None:
        """`complete`, `max_time`, the name of a signal, or what went wrong; None to go on. The same
        on every rank.
        """
        if self._halt is not None:
            return self._halt
        if self.plan.total_steps is not None and self.state.step >= self.plan.total_steps:
            return COMPLETE
        alone = self.plan.world.world_size == 1
        signal, time_up = self._own_votes() if alone else self._votes
        if signal:
            return self.signals.name or ("deadline" if self.deadline.due else "signal")
        return TIME_UP if time_up else None

    def next_batches(self) -> list[Batch]:
        """The micro-batches of the next data step that is not skipped."""
        with self.observer.during("data"):
            while self.state.is_skipped(self.state.data_step + 1):
                self.stream.skip(1)
                self.state.data_step += 1
            try:
                return self.stream.next_batches(self.plan.micro_steps)
            except DataError:
                self._keep_what_is_whole()
                raise

    def update(self, batches: Sequence[Batch]) -> StepResult:
        """One optimizer update at this step's learning rate."""
        signal, time_up = self._own_votes()
        skips = self.policy.spikes is not None and self.policy.on_spike == "skip"
        return self.updater(
            batches,
            lr=self.schedule.rate_at(self.state.step),
            signal=bool(signal),
            time_up=bool(time_up),
            loss_limit=self.policy.spikes.limit if skips and self.policy.spikes else math.inf,
        )

    def advance(self, result: StepResult) -> None:
        """Count the step, and decide what is due after it."""
        state = self.state
        state.step += 1
        state.data_step += 1
        state.tokens += result.tokens
        state.digest = chain(state.digest, as_unsigned(result.totals.digest_sum))
        state.seconds = self._seconds_before + self.clock() - self._begun
        seen = state.samples_per_stream
        for key, count in zip(self.plan.stream_keys, result.totals.stream_samples, strict=True):
            seen[key] = seen.get(key, 0) + count
        self._votes = (result.totals.signal_votes, result.totals.time_up_votes)
        self.triggers.save_now = self.plan.save_due(state.step) or self._time_to_save()

    def report(self, result: StepResult) -> None:
        """Hand the step to the observer; look at what it has read of this and earlier ones."""
        self._inspect(self.observer.step(self._record(result)))

    @property
    def must_rewind(self) -> bool:
        """A spike was found that going back and leaving its data out will mend."""
        return self._spike is not None and self._halt is None

    def rewind(self) -> None:
        """Go back to the newest checkpoint before the spike; its data step will be left out from
        now on.

        The state goes back in everything but the time spent and the steps skipped. Which checkpoint
        it goes back to does not change what comes of it.
        """
        assert self._spike is not None
        step, data_step = self._spike
        self._spike = None
        self._rewinds += 1
        found = self.checkpoints.find("auto", at_most=step - 1)
        earlier = None if found is None else self.checkpoints.state_of(found)
        if found is None or earlier is None or earlier.phase != self.state.phase:
            self._halt = (
                f"step {step}: the loss spikes and there is no checkpoint of this phase before it"
            )
            return
        if self._rewinds > MOST_REWINDS:
            self._halt = f"step {step}: the loss still spikes after {MOST_REWINDS} rewinds"
            return
        before = self.state
        state = self.checkpoints.restore(found)
        state.seconds = before.seconds
        state.skipped = before.skipped
        state.skip(data_step, data_step)
        self.state.replace_with(state)
        self.updater.loss_scale.load(state.precision)
        if self.policy.spikes is not None:
            self.policy.spikes.adopt(self.state.spike)
        self.stream.seek(self.state.data_step - self.state.phase_start)
        self.observer.print_line(
            f"step {step}: spike; back to step {found.step}, data step {data_step} is left out"
        )
        self.observer.start(
            step=found.step,
            tokens=self.state.tokens,
            resumed=True,
            rewound_from=step,
            skipped=self.state.skipped,
        )

    def evaluate(self) -> None:
        """Loss on every validation set."""
        with self.observer.during("evaluation"):
            sets = evaluate(self.fabric, self.model, self.validation_sets)
        self.observer.evaluation(step=self.state.step, sets=sets)
        mean = sum(found["loss"] for found in sets.values()) / len(sets)
        if math.isfinite(mean) and mean < self.state.best.get("loss", math.inf):
            self.state.best = {"step": self.state.step, "loss": mean}

    def save(self) -> None:
        """A checkpoint of this step; metrics up to here are on the disk before its receipt."""
        self._inspect(self.observer.read())
        if self._halt is not None or self._spike is not None:
            return
        with self.observer.during("save"):
            self.state.precision = self.updater.loss_scale.state()
            stalled = self.checkpoints.save(self.state)
        if stalled:
            self.observer.save(step=self.state.step, seconds=stalled)
        self.deadline.margin_s = max(self.deadline.margin_s, 2 * self.checkpoints.longest_save_s)
        self._last_save = self.clock()

    def finish(self, reason: str) -> None:
        """The last save. Nothing is saved after a bad loss: the last good checkpoint stays the
        newest.

        Raises:
            TrainingError: a bad step ends the run.
        """
        self._inspect(self.observer.read())
        self.save()
        self.checkpoints.wait()
        if self._halt is not None:
            raise TrainingError(
                f"{self._halt}. The newest checkpoint is from before it. "
                "Lower the learning rate, or let "
                "optimizer.on_nonfinite or optimizer.on_spike skip such steps."
            )
        if reason == COMPLETE:
            self.observer.print_line(
                f"finished: step {self.state.step}, data digest {self.state.digest}"
            )

    # ---- what they are made of

    def _keep_what_is_whole(self) -> None:
        """Data has failed between two steps: save the last whole one. Several ranks cannot agree on
        that here; theirs is the newest checkpoint.
        """
        if self.plan.world.world_size > 1:
            return
        self.save()
        self.checkpoints.wait()
        self.observer.print_line(
            f"step {self.state.step} is saved; run the same command to go on from it"
        )

    def _own_votes(self) -> tuple[int, int]:
        """This rank's wish to stop: for a signal or a deadline, and for `stop.max_time`."""
        limit = self.plan.max_seconds
        spent = self._seconds_before + self.clock() - self._begun
        leave = self.signals.name is not None or self.deadline.due
        return int(leave), int(limit is not None and spent >= limit)

    def _time_to_save(self) -> bool:
        """Rank 0's clock decides for all."""
        every = self.triggers.save_every_s
        if every is None:
            return False
        due = self.plan.world.is_rank0 and self.clock() - self._last_save >= every
        return self.control.agree(due)

    def _record(self, result: StepResult) -> StepRecord:
        """What the observer keeps of a step; device values are read later."""
        state, plan = self.state, self.plan
        position = self.stream.position
        extra: dict[str, Any] = {"applied": result.applied}
        tokens = None
        if len(plan.streams) > 1:
            names = [facts.name for facts in plan.streams]
            counts = [state.samples_per_stream[key] for key in plan.stream_keys]
            tokens = {n: count * plan.seq_len for n, count in zip(names, counts, strict=True)}
            extra["stream_epochs"] = {
                facts.name: count / facts.samples
                for facts, count in zip(plan.streams, counts, strict=True)
            }
            if result.stream_losses is not None:
                extra["stream_loss"] = dict(zip(names, result.stream_losses, strict=True))
        return StepRecord(
            step=state.step,
            data_step=state.data_step,
            tokens=state.tokens,
            epoch=position.epoch,
            sample_in_epoch=position.sample_in_epoch,
            loss=result.loss,
            lr=result.lr,
            grad_norm=result.grad_norm,
            digest=state.digest,
            stream_tokens=tokens,
            extra=extra,
        )

    def _inspect(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Look at steps whose values have been read. The first bad one decides; those after it are
        not looked at.
        """
        for event in events:
            if event["event"] != "step" or self._halt is not None or self._spike is not None:
                continue
            self._judge(event)

    def _judge(self, event: Mapping[str, Any]) -> None:
        policy, step = self.policy, event["step"]
        spiked = policy.spikes is not None and policy.spikes.judge(event["loss"])
        if spiked and policy.on_spike == "stop":
            self._halt = f"step {step}: the loss spikes at {event['loss']}"
        elif spiked and policy.on_spike == "rewind":
            self._spike = (step, event["data_step"])
        elif not event["applied"]:
            self.observer.print_line(
                f"step {step}: update left out (loss {event['loss']}, norm {event['grad_norm']})"
            )
            if policy.stop_on_nonfinite and not spiked:
                self._halt = f"step {step}: the gradient norm is not finite"
