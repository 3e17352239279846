"""Verify all files of a run, and list the faults.

Checkpoints are compared with their receipts, metrics with the steps and digests of the checkpoints,
and the shards that the run trains on with their index. Each fault names its file; nothing is
changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from stream_pretrain.audit.metrics import step_events
from stream_pretrain.audit.run_history import Phase, read_run_history
from stream_pretrain.checkpoint.checkpoint_dir import CheckpointDir
from stream_pretrain.checkpoint.state import TrainState
from stream_pretrain.config.sections import StorageConfig
from stream_pretrain.data.fetching.fetch_shard import FetchSettings, fetch_shard
from stream_pretrain.errors import (
    ConfigError,
    DataError,
    ShardError,
    StorageError,
    StreamPretrainError,
)
from stream_pretrain.storage.store import Store
from stream_pretrain.train.data_sources import DataSource
from stream_pretrain.train.run_dir import METRICS_NAME


@dataclass(frozen=True, kw_only=True)
class VerifyResult:
    """The number of checkpoints, steps and shards that were verified, and their faults."""

    checkpoints: int
    steps: int
    shards: int
    faults: tuple[str, ...]


def verify_run(
    run: Store, storage: StorageConfig, *, fast: bool = False, step: int | None = None
) -> VerifyResult:
    """Verify all checkpoints (or that of `step`), the metrics and the data.

    With `fast` only sizes are compared, and no hashes.
    """
    faults: list[str] = []
    states = list(_checkpoints(run, fast, step, faults))
    steps = _metrics(run, states, faults)
    shards = _data(run, storage, fast, faults) if states else 0
    if not states and not faults:
        faults.append(f"{run.url('checkpoints')}: no checkpoint")
    return VerifyResult(checkpoints=len(states), steps=steps, shards=shards, faults=tuple(faults))


def _checkpoints(
    run: Store, fast: bool, step: int | None, faults: list[str]
) -> Iterator[TrainState]:
    directory = CheckpointDir(run)
    for saved_step in directory.steps() if step is None else [step]:
        try:
            yield directory.state(directory.check(saved_step, hashes=not fast))
        except StreamPretrainError as error:
            faults.append(str(error))


def _metrics(run: Store, states: list[TrainState], faults: list[str]) -> int:
    """Check the steps of the metrics, and return their number.

    Each step must be there once, without a gap up to the newest checkpoint, and with the data
    digest that its checkpoint has.
    """
    digests: dict[int, str] = {}
    try:
        for event in step_events(run):
            if event["step"] in digests:
                faults.append(f"{run.url(METRICS_NAME)}: step {event['step']} appears twice")
            digests[event["step"]] = event["digest"]
    except StorageError as error:
        faults.append(str(error))
        return 0
    newest = max((state.step for state in states), default=0)
    missing = sorted(set(range(1, newest + 1)) - digests.keys())
    if missing:
        faults.append(
            f"{run.url(METRICS_NAME)}: {len(missing)} steps are missing, the first is {missing[0]}"
        )
    for state in states:
        digest = digests.get(state.step)
        if digest is not None and digest != state.digest:
            faults.append(
                f"{run.url(METRICS_NAME)}: step {state.step} has data digest {digest}, its "
                f"checkpoint {state.digest}"
            )
    return len(digests)


def _data(run: Store, storage: StorageConfig, fast: bool, faults: list[str]) -> int:
    """Check size and (unless `fast`) hash of the newest phase's shards; return their number."""
    try:
        phase: Phase = read_run_history(run, storage).phases[-1]
    except (DataError, ConfigError, StorageError) as error:
        faults.append(str(error))
        return 0
    count = 0
    for source in phase.sources.train:
        count += len(source.index.shards)
        faults += _size_faults(source) if fast else _hash_faults(source)
    return count


def _size_faults(source: DataSource) -> Iterator[str]:
    sizes = {info.key: info.size for info in source.store.list("")}
    for shard in source.index.shards:
        name, size = shard.fetched.name, shard.fetched.size
        if name not in sizes:
            yield f"{source.store.url(name)}: is missing"
        elif sizes[name] != size:
            yield f"{source.store.url(name)}: has {sizes[name]} bytes, index.json says {size}"


def _hash_faults(source: DataSource) -> Iterator[str]:
    """Fetch each shard to a temporary directory, as a run does, and delete it again."""
    settings = FetchSettings(verify="arrival")
    for shard in source.index.shards:
        with TemporaryDirectory(prefix="verify-") as directory:
            try:
                fetch_shard(shard, source.store, Path(directory), settings)
            except ShardError as error:
                yield str(error)
