"""Is everything of a run whole and of one piece? In: a run directory. Out: faults, each naming its
place. Changes nothing.

Checkpoints against their receipts, metrics against the checkpoints' steps and digests, and the
shards that the run trains on against their index.
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
class Verified:
    """What was looked at, and every fault found there."""

    checkpoints: int
    steps: int
    shards: int
    faults: tuple[str, ...]


def verify_run(
    run: Store, storage: StorageConfig, *, fast: bool = False, step: int | None = None
) -> Verified:
    """Look at all checkpoints (or one), the metrics and the data; `fast` compares sizes only."""
    faults: list[str] = []
    states = list(_checkpoints(run, fast, step, faults))
    steps = _metrics(run, states, faults)
    shards = _data(run, storage, fast, faults) if states else 0
    if not states and not faults:
        faults.append(f"{run.url('checkpoints')}: no checkpoint")
    return Verified(checkpoints=len(states), steps=steps, shards=shards, faults=tuple(faults))


def _checkpoints(
    run: Store, fast: bool, step: int | None, faults: list[str]
) -> Iterator[TrainState]:
    shelf = CheckpointDir(run)
    for found in shelf.steps() if step is None else [step]:
        try:
            yield shelf.state(shelf.check(found, hashes=not fast))
        except StreamPretrainError as error:
            faults.append(str(error))


def _metrics(run: Store, states: list[TrainState], faults: list[str]) -> int:
    """Steps in the metrics: each once, without a gap up to the newest checkpoint, with the
    checkpoints' digests.
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
        written = digests.get(state.step)
        if written is not None and written != state.digest:
            faults.append(
                f"{run.url(METRICS_NAME)}: step {state.step} has data digest {written}, its "
                f"checkpoint {state.digest}"
            )
    return len(digests)


def _data(run: Store, storage: StorageConfig, fast: bool, faults: list[str]) -> int:
    """Shards of the newest phase, in place: sizes, and hashes unless `fast`."""
    try:
        phase: Phase = read_run_history(run, storage).phases[-1]
    except (DataError, ConfigError, StorageError) as error:
        faults.append(str(error))
        return 0
    count = 0
    for source in phase.sources.train:
        count += len(source.index.shards)
        faults += _sizes(source) if fast else _hashes(source)
    return count


def _sizes(source: DataSource) -> Iterator[str]:
    there = {info.key: info.size for info in source.store.list("")}
    for shard in source.index.shards:
        name, size = shard.fetched.name, shard.fetched.size
        if name not in there:
            yield f"{source.store.url(name)}: is missing"
        elif there[name] != size:
            yield f"{source.store.url(name)}: has {there[name]} bytes, index.json says {size}"


def _hashes(source: DataSource) -> Iterator[str]:
    """Fetch each shard to a temporary directory, as a run would, and drop it again."""
    settings = FetchSettings(verify="arrival")
    for shard in source.index.shards:
        with TemporaryDirectory(prefix="verify-") as place:
            try:
                fetch_shard(shard, source.store, Path(place), settings)
            except ShardError as error:
                yield str(error)
