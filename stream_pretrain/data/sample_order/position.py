"""Data steps -> the dataset's native state. In: step counts. Out: `DataPosition`.

Does not count anything itself.

The state of `StreamingDataset` has five keys and checks none of them (TRAPS D), so they are
computed here from the
data step and from nothing else: a loader that looks ahead, a worker that died or an epoch that just
ended cannot
put them out of step.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True, kw_only=True)
class DataPosition:
    """Where a stream stands, in the dataset's own five keys.

    `initial_physical_nodes` is always 1: with it, every node count that divides the global batch
    sees the same
    steps; without it the library derives a layout from the node count of the first launch.
    """

    epoch: int
    sample_in_epoch: int
    num_canonical_nodes: int
    shuffle_seed: int
    initial_physical_nodes: int = 1

    def native(self) -> dict[str, int]:
        """The dictionary that `StreamingDataset.load_state_dict` takes."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class EpochClock:
    """Arithmetic of one phase:

    `steps_per_epoch` global batches of `global_batch` samples make an epoch.
    """

    global_batch: int
    steps_per_epoch: int
    num_canonical_nodes: int
    shuffle_seed: int

    def position(self, phase_step: int) -> DataPosition:
        """Position after `phase_step` global batches of this phase.

        At an epoch's end this is `{epoch + 1, 0}`: a state of `{epoch, end}` can be illegal to
        load.
        """
        if phase_step < 0:
            raise ValueError(f"phase_step must be at least 0, got {phase_step}")
        epoch, step_in_epoch = divmod(phase_step, self.steps_per_epoch)
        return DataPosition(
            epoch=epoch,
            sample_in_epoch=step_in_epoch * self.global_batch,
            num_canonical_nodes=self.num_canonical_nodes,
            shuffle_seed=self.shuffle_seed,
        )

    def steps_left_in_epoch(self, phase_step: int) -> int:
        """Global batches until this epoch ends, at least 1."""
        return self.steps_per_epoch - phase_step % self.steps_per_epoch
