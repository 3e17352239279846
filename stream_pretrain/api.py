"""The same job from a script or notebook. In: YAML files and plain mappings. Out: a config, an
outcome. Adds nothing.

    config = configure("configs/demo.yaml", {"run": {"dir": "run"}, "data": {"train": [{"local":
    "dataset"}]}}) outcome = fit(config)

Several ranks need a launcher: start the script with torchrun or srun, or use the `stream-pretrain`
command.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stream_pretrain.config.load_config import config_of, merge
from stream_pretrain.config.sections import Config
from stream_pretrain.config.yaml import load_yaml

__all__ = ["Config", "Outcome", "configure", "fit"]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended: `reason` is `complete`, `max_time`, or the name of the signal that stopped
    it.
    """

    reason: str
    step: int
    tokens: int
    digest: str
    run_dir: str

    @property
    def finished(self) -> bool:
        """False where the same call would go on."""
        return self.reason in ("complete", "max_time")


def configure(*layers: str | Path | Mapping[str, Any]) -> Config:
    """A checked configuration from YAML files and mappings; later ones win.

    Raises:
        ConfigError: every fault at once.
    """
    values: dict[str, Any] = {}
    for layer in layers:
        found = layer if isinstance(layer, Mapping) else load_yaml(layer)
        values = merge(values, found or {})
    return config_of(Config, values)


def fit(config: Config) -> Outcome:
    """Train, or go on training, to the end or to a stop signal; what `stream-pretrain fit` does.

    Raises:
        StreamPretrainError: whatever the command would print.
    """
    from stream_pretrain.runtime.stop import kill_children
    from stream_pretrain.train.assembly import assembled
    from stream_pretrain.train.fit import conclude
    from stream_pretrain.train.loop import train
    from stream_pretrain.train.prepare import prepare

    try:
        with assembled(prepare(config)) as job:
            reason = job.stop_reason()
            if reason != "complete":
                reason = train(job)
                conclude(job, reason)
            return Outcome(
                reason=reason,
                step=job.state.step,
                tokens=job.state.tokens,
                digest=job.state.digest,
                run_dir=config.run.dir,
            )
    finally:
        kill_children()
