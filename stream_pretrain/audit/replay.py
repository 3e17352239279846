"""The data of a run, read again without a model. In: a run directory. Out: the digest that its data
gives.

What comes out must be the digest in the checkpoint: then the run trained on these samples in these
steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stream_pretrain.audit.run_history import Phase, RunHistory
from stream_pretrain.checkpoint.state import TrainState
from stream_pretrain.data.epoch_stream import EpochStream, LoaderSettings
from stream_pretrain.data.sample_order.digest import EMPTY_DIGEST, as_unsigned, chain, step_sum
from stream_pretrain.data.sample_order.position import EpochClock
from stream_pretrain.train.datasets import training_dataset


@dataclass(frozen=True, kw_only=True)
class ReplayResult:
    """Digest after `data_step`; `recorded` is the run's own at that step, where it is known."""

    data_step: int
    digest: str
    recorded: str | None

    @property
    def same(self) -> bool:
        """Whether the run's own digest is known and equal."""
        return self.digest == self.recorded


def replay(
    history: RunHistory,
    *,
    last: int | None = None,
    recorded: str | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> ReplayResult:
    """Read every data step up to `last` (default: all of the checkpoint) in one process and chain
    its digest.
    """
    state = history.state
    until = state.data_step if last is None else last
    if last is not None:
        history.phase_of(last)
    digest = EMPTY_DIGEST
    for phase in history.phases:
        digest = _replay_phase(phase, min(phase.last, until), digest, state, progress)
    known = state.digest if until == state.data_step else recorded
    return ReplayResult(data_step=until, digest=digest, recorded=known)


def _replay_phase(
    phase: Phase, until: int, digest: str, state: TrainState, progress: Callable[[int], None]
) -> str:
    order = phase.plan.order
    clock = EpochClock(
        global_batch=phase.plan.global_batch,
        steps_per_epoch=order.steps_per_epoch,
        num_canonical_nodes=order.canonical_nodes,
        shuffle_seed=order.shuffle_seed,
    )
    settings = LoaderSettings(micro_batch=phase.plan.global_batch, micro_steps=1)
    dataset = training_dataset(phase.config, phase.plan.for_one_process(), phase.sources)
    try:
        stream = EpochStream(dataset, clock, settings, 0)
        for data_step in range(phase.first, until + 1):
            if state.is_skipped(data_step):
                stream.skip(1)
                continue
            (batch,) = stream.next_batches(1)
            digest = chain(digest, step_sum([as_unsigned(batch.digest_sum)]))
            progress(data_step)
    finally:
        dataset.close()
    return digest
