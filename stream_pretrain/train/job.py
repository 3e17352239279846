"""A run in motion: the verbs of the loop. In: assembled parts. Out: changed state. Wires nothing, decides little.

Assembly builds a `Job`; the loop calls its verbs in order. All that a restart needs is in `state`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stream_pretrain.data.batch import Batch
from stream_pretrain.data.digest import as_unsigned, chain
from stream_pretrain.data.holdout import Holdout
from stream_pretrain.errors import TrainingError
from stream_pretrain.observe.events import StepRecord
from stream_pretrain.train.evaluate import evaluate
from stream_pretrain.train.step import StepResult, Updater

if TYPE_CHECKING:
    from lightning.fabric import Fabric
    from torch import nn

    from stream_pretrain.checkpoint.save import Checkpoints
    from stream_pretrain.checkpoint.state import TrainState
    from stream_pretrain.data.stream import EpochStream
    from stream_pretrain.observe.observer import Observer
    from stream_pretrain.optim.schedule import Schedule
    from stream_pretrain.plan import Plan
    from stream_pretrain.runtime.control import Control
    from stream_pretrain.runtime.stop import Deadline, SignalFlag
    from stream_pretrain.storage.store import Store

COMPLETE = "complete"
TIME_UP = "max_time"
NONFINITE = "non-finite"


@dataclass(kw_only=True)
class Job:
    """Everything that the loop speaks of. `state` is the only part that a checkpoint holds as it is."""

    plan: Plan
    state: TrainState
    run: Store
    fabric: Fabric
    model: nn.Module
    stream: EpochStream
    updater: Updater
    schedule: Schedule
    holdouts: Mapping[str, Holdout]
    checkpoints: Checkpoints
    observer: Observer
    control: Control
    signals: SignalFlag
    deadline: Deadline
    stop_on_nonfinite: bool = False
    save_every_s: float | None = None
    clock: Callable[[], float] = time.monotonic
    _votes: tuple[int, int] = (0, 0)
    _begun: float = field(default=0.0, init=False)
    _last_save: float = field(default=0.0, init=False)
    _seconds_before: float = field(default=0.0, init=False)
    _halt: str | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._begun = self._last_save = self.clock()
        self._seconds_before = self.state.seconds

    def stop_reason(self) -> str | None:
        """`complete`, `max_time`, the name of a signal, or `non-finite`; None to go on. The same on every rank."""
        if self.plan.total_steps is not None and self.state.step >= self.plan.total_steps:
            return COMPLETE
        if self._halt is not None:
            return self._halt
        alone = self.plan.world.world_size == 1
        signal, time_up = self._own_votes() if alone else self._votes
        if signal:
            return self.signals.name or ("deadline" if self.deadline.due else "signal")
        return TIME_UP if time_up else None

    def take(self) -> list[Batch]:
        """The micro-batches of the next data step that is not skipped."""
        with self.observer.during("data"):
            while self.state.is_skipped(self.state.data_step + 1):
                self.stream.skip(1)
                self.state.data_step += 1
            return self.stream.take(self.plan.micro_steps)

    def update(self, batches: Sequence[Batch]) -> StepResult:
        """One optimizer update at this step's learning rate."""
        signal, time_up = self._own_votes()
        rate = self.schedule.rate_at(self.state.step)
        return self.updater(batches, lr=rate, signal=bool(signal), time_up=bool(time_up))

    def advance(self, result: StepResult) -> None:
        """Count the step."""
        state = self.state
        state.step += 1
        state.data_step += 1
        state.tokens += result.tokens
        state.digest = chain(state.digest, as_unsigned(result.heard.digest_sum))
        state.seconds = self._seconds_before + self.clock() - self._begun
        for facts, count in zip(self.plan.streams, result.heard.stream_samples, strict=True):
            state.samples_per_stream[facts.name] = state.samples_per_stream.get(facts.name, 0) + count
        self._votes = (result.heard.signal_votes, result.heard.time_up_votes)

    def report(self, result: StepResult) -> None:
        """Hand the step to the observer; read what it has read of earlier ones."""
        self._inspect(self.observer.step(self._record(result)))

    def evaluate(self) -> None:
        """Loss on every validation set."""
        with self.observer.during("evaluation"):
            sets = evaluate(self.fabric, self.model, self.holdouts)
        self.observer.evaluation(step=self.state.step, sets=sets)
        mean = sum(found["loss"] for found in sets.values()) / len(sets)
        if not self.state.best or mean < self.state.best["loss"]:
            self.state.best = {"step": self.state.step, "loss": mean}

    def save_due(self) -> bool:
        """By steps, or by time where one rank's clock decides for all."""
        if self._halt is not None:
            return False
        due = self.save_every_s is not None and self.clock() - self._last_save >= self.save_every_s
        return self.plan.save_due(self.state.step) or self.control.agree(due and self.plan.world.is_leader)

    def save(self) -> None:
        """A checkpoint of this step; metrics up to here are on the disk before its receipt."""
        self._inspect(self.observer.read())
        if self._halt is not None:
            return
        with self.observer.during("save"):
            stalled = self.checkpoints.save(self.state)
        if stalled:
            self.observer.save(step=self.state.step, seconds=stalled)
        self.deadline.margin_s = max(self.deadline.margin_s, 2 * stalled)
        self._last_save = self.clock()

    def finish(self, reason: str) -> None:
        """The last evaluation and save. Nothing is saved after a non-finite loss: the last good one stays newest.

        Raises:
            TrainingError: the run stops because of a non-finite loss or gradient.
        """
        self._inspect(self.observer.read())
        if self._halt is None:
            self.save()
        self.checkpoints.wait()
        if self._halt is not None:
            raise TrainingError(
                f"Step {self.state.step}: the gradient norm is not finite (optimizer.on_nonfinite: stop). "
                "The last checkpoint before it is the newest. Lower the learning rate, or set "
                "optimizer.on_nonfinite to skip."
            )
        if reason == COMPLETE:
            self.observer.say(f"finished: step {self.state.step}, data digest {self.state.digest}")

    def _own_votes(self) -> tuple[int, int]:
        """This rank's wish to stop: for a signal or a deadline, and for `stop.max_time`."""
        limit = self.plan.max_seconds
        spent = self._seconds_before + self.clock() - self._begun
        leave = self.signals.name is not None or self.deadline.due
        return int(leave), int(limit is not None and spent >= limit)

    def _record(self, result: StepResult) -> StepRecord:
        """What the observer keeps of a step; device values are read later."""
        state, plan = self.state, self.plan
        position = self.stream.position
        extra: dict[str, Any] = {"applied": result.applied}
        tokens = None
        if len(plan.streams) > 1:
            names = [facts.name for facts in plan.streams]
            counts = state.samples_per_stream
            tokens = {name: counts[name] * plan.seq_len for name in names}
            extra["stream_epochs"] = {
                facts.name: counts[facts.name] / facts.samples for facts in plan.streams
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
        """Look at steps whose values have been read: a non-finite one is counted, or stops the run."""
        for event in events:
            if event["event"] == "step" and not event["applied"]:
                self.observer.say(f"step {event['step']}: non-finite gradient norm, update left out")
                if self.stop_on_nonfinite:
                    self._halt = NONFINITE
