"""What a run was made of. In: a run directory. Out: its newest state and, for each phase,
configuration and plan.

A phase's plan is derived again from the configuration that began it, for one process: order and
steps do not depend on the topology. It must have the fingerprint that the run recorded, or nothing
is said about that phase.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stream_pretrain.checkpoint.read_model import read_state
from stream_pretrain.checkpoint.state import TrainState
from stream_pretrain.config.load_config import config_of
from stream_pretrain.config.sections import Config, StorageConfig
from stream_pretrain.config.yaml import parse_document
from stream_pretrain.data.node.world_check import library_version
from stream_pretrain.data.sample_order.fingerprint import fingerprint
from stream_pretrain.errors import DataError
from stream_pretrain.model.registry import model_facts
from stream_pretrain.plan import Plan, plan
from stream_pretrain.schema import World
from stream_pretrain.storage.store import Store
from stream_pretrain.train.data_sources import DataSources, gather


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Data steps `first..last` (from 1, `last` included) of a run, with what ordered them."""

    number: int
    first: int
    last: int
    config: Config
    sources: DataSources
    plan: Plan


@dataclass(frozen=True, kw_only=True)
class RunHistory:
    """The newest checkpoint's state, and all phases up to it."""

    state: TrainState
    phases: tuple[Phase, ...]

    def phase_of(self, data_step: int) -> Phase:
        """The phase that a data step belongs to."""
        for phase in self.phases:
            if phase.first <= data_step <= phase.last:
                return phase
        raise DataError(
            f"data step {data_step}: the run's checkpoint has steps 1 to {self.state.data_step}"
        )


def read_run_history(run: Store, storage: StorageConfig, *, step: int | None = None) -> RunHistory:
    """Read a run's state (of the checkpoint at `step`, else the newest) and derive its phases
    again.

    Raises:
        CheckpointError: no whole checkpoint.
        DataError: a phase's data is no longer what it was trained on.
    """
    state = read_state(run, step)
    starts = [record["data_step"] for record in state.phases]
    ends = [*starts[1:], state.data_step]
    phases = [
        _phase(run, storage, record, first + 1, last)
        for record, first, last in zip(state.phases, starts, ends, strict=True)
    ]
    return RunHistory(state=state, phases=tuple(phases))


def _phase(
    run: Store, storage: StorageConfig, record: Mapping[str, Any], first: int, last: int
) -> Phase:
    name = record["config"]
    values = parse_document(run.read(name).decode(), source=run.url(name)).value
    if not isinstance(values, dict):
        raise DataError(f"{run.url(name)}: not a configuration. Restore the file.")
    if storage.model_fields_set:
        merged = {
            **values.get("storage", {}),
            **storage.model_dump(mode="json", exclude_unset=True),
        }
        values = {**values, "storage": merged}
    config = config_of(Config, values)
    sources = gather(config)
    planned = plan(
        config,
        World(),
        [source.facts for source in sources.train],
        {},
        model_facts(config.model),
    )
    found = fingerprint(planned, library_version()).digest
    if found != record["fingerprint"]:
        raise DataError(
            f"{run.url(name)}: the data of phase {record['phase']} has fingerprint {found}, it was "
            f"trained on {record['fingerprint']}. Point to the data as it was."
        )
    return Phase(
        number=record["phase"],
        first=first,
        last=last,
        config=config,
        sources=sources,
        plan=planned,
    )
