"""May this run go on from that checkpoint? In: saved and current fingerprints. Out: the state to go
on with, or an error.

What decides the data may change only on purpose, and then a new phase begins; optimizer and
schedule likewise; the model and the optimizer's name never.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stream_pretrain.checkpoint.state import TrainState
from stream_pretrain.config.sections import Config
from stream_pretrain.data.sample_order.fingerprint import Fingerprint, differences
from stream_pretrain.errors import ConfigError, Fault
from stream_pretrain.plan import Plan

OPEN_ENDED = ("constant", "inverse_sqrt")


def training_fields(config: Config, planned: Plan) -> dict[str, Any]:
    """What decides the updates beside the data, in plain JSON values.

    A schedule without an end does not depend on the length of the run, so a longer run changes
    nothing there.
    """
    optimizer = config.optimizer.model_dump(mode="json")
    schedule: dict[str, Any] = {
        "kind": config.schedule.kind,
        "min_lr": config.schedule.min_lr,
        "warmup_steps": planned.warmup_steps,
        "decay_steps": planned.decay_steps,
    }
    if config.schedule.kind not in OPEN_ENDED:
        schedule["total_steps"] = planned.total_steps
    return {
        "model": config.model.model_dump(mode="json", exclude={"init_from"}),
        "weights": "bfloat16" if config.compute.precision == "bf16-true" else "float32",
        "optimizer_name": optimizer.pop("name"),
        "optimizer": optimizer,
        "loss": config.loss.model_dump(mode="json", exclude={"chunk"}),
        "schedule": schedule,
        "seed": config.run.seed,
    }


def begin(state: TrainState, data: Fingerprint, training: Mapping[str, Any]) -> None:
    """Write the fingerprints of a new run into its state, with the record of its first phase."""
    state.fingerprint = {
        "data": dict(data.fields),
        "digest": data.digest,
        "training": dict(training),
    }
    state.phases = [_phase(state, None, data.digest)]


def go_on(
    state: TrainState, data: Fingerprint, training: Mapping[str, Any], config: Config
) -> list[str]:
    """Compare and accept. Returns what was accepted, one line each; the state begins a new phase if
    the data changed.

    Raises:
        ConfigError: something differs that may not, field by field, with the flag that accepts it.
    """
    saved = state.fingerprint
    faults: list[Fault] = []
    accepted: list[str] = []
    changed = differences(saved["data"], dict(data.fields))
    _judge(changed, "data", config.run.on_data_change, "run.on_data_change", faults, accepted)
    _judge_training(saved["training"], training, config, faults, accepted)
    if faults:
        raise ConfigError.of(faults)
    if changed:
        state.phase += 1
        state.phase_start = state.data_step
        state.phases.append(_phase(state, saved["digest"], data.digest))
    state.fingerprint = {
        "data": dict(data.fields),
        "digest": data.digest,
        "training": dict(training),
    }
    return accepted


def _judge_training(
    saved: Mapping[str, Any],
    current: Mapping[str, Any],
    config: Config,
    faults: list[Fault],
    accepted: list[str],
) -> None:
    for part in ("model", "weights", "optimizer_name"):
        for line in differences({part: saved[part]}, {part: current[part]}):
            faults.append(
                Fault(path=line.partition(":")[0], found=line.partition(": ")[2], remedy=_NEVER)
            )
    for part in ("optimizer", "loss", "schedule", "seed"):
        changed = differences({part: saved[part]}, {part: current[part]})
        policy = config.run.on_config_change
        _judge(changed, "settings", policy, "run.on_config_change", faults, accepted)


_NEVER = (
    "may not change within a run; choose another run.dir, or model.init_from to start from its "
    "weights"
)


def _judge(
    changed: list[str], what: str, policy: str, flag: str, faults: list[Fault], accepted: list[str]
) -> None:
    """Saved -> current lines become faults, or are accepted."""
    if policy == "accept":
        accepted.extend(changed)
        return
    for line in changed:
        path, _, values = line.partition(": ")
        faults.append(
            Fault(
                path=f"{what} {path}",
                found=values,
                remedy=f"differs from the checkpoint (saved -> now); restore it, or accept with "
                f"--{flag} accept",
            )
        )


def _phase(state: TrainState, before: str | None, after: str) -> dict[str, Any]:
    return {
        "phase": state.phase,
        "step": state.step,
        "data_step": state.data_step,
        "from": before,
        "fingerprint": after,
    }
