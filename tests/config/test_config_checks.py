"""Settings that contradict one another are refused, each with its remedy. No file is read."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from pydantic import ValidationError

from stream_pretrain.config.checks import SPIKE_DEFAULTS
from stream_pretrain.config.load_config import config_of
from stream_pretrain.config.sections import Config, OptimizerConfig
from stream_pretrain.errors import ConfigError

SOUND: dict[str, Any] = {
    "run": {"dir": "runs/a"},
    "model": {"name": "pythia-14m"},
    "data": {"train": [{"remote": "s3://bucket/web"}]},
    "batch": {"global_size": 8},
    "stop": {"max_steps": 100},
    "optimizer": {"lr": 3e-4},
}


def laid_on(changes: dict[str, Any]) -> dict[str, Any]:
    """Return SOUND with values at dotted paths; None as the value of a section removes it."""
    values = copy.deepcopy(SOUND)
    for path, value in changes.items():
        *parents, last = path.split(".")
        at = values
        for part in parents:
            at = at.setdefault(part, {})
        at[last] = value
    return values


CONTRADICTIONS: list[tuple[dict[str, Any], str, str]] = [
    ({"model.name": None}, "model", "give model.name"),
    ({"data.train": [{"name": "a"}]}, "data.train.0", "give remote"),
    ({"data.train": [{"remote": "/a", "local": "/a"}]}, "data.train.0.local", "is remote itself"),
    (
        {"data.train": [{"local": "/a", "storage": {"region": "x"}}]},
        "data.train.0.storage",
        "has no effect without remote",
    ),
    (
        {"data.train": [{"local": "/a/x"}, {"local": "/b/x"}]},
        "data.train.1.name",
        "must be unique",
    ),
    (
        {"data.train": [{"local": "/a", "weight": 1}, {"local": "/b", "weight": 2, "repeat": 3}]},
        "data.train.1.repeat",
        "has no effect beside weights",
    ),
    (
        {"data.train": [{"local": "/a", "weight": 1}, {"local": "/b"}]},
        "data.train.1.weight",
        "must be given",
    ),
    (
        {"data.train": [{"local": "/a", "weight": 1}]},
        "data.train.0.weight",
        "no effect on a single stream",
    ),
    (
        {"data.validation": [{"local": "/v", "weight": 1}]},
        "data.validation.0.weight",
        "has no effect on validation",
    ),
    (
        {"data.train": [{"local": "/a"}], "data.cache": {"limit": "1GB"}},
        "data.cache.limit",
        "would delete the only copy of data.train.0",
    ),
    (
        {"data.shuffle": {"algo": "py1s", "block_size": 1000}},
        "data.shuffle.block_size",
        "no effect with algo py1s",
    ),
    (
        {"data.shuffle": {"algo": "none", "seed": 1}},
        "data.shuffle.seed",
        "no effect with algo none",
    ),
    ({"batch.micro_size": 3}, "batch.micro_size", "must divide batch.global_size (8); 2 does"),
    ({"stop": {}}, "stop", "give max_tokens, max_steps, max_epochs or max_time"),
    (
        {"schedule.kind": "constant", "schedule.decay": 0.1},
        "schedule.decay",
        "has no effect with kind constant",
    ),
    ({"schedule.kind": "wsd"}, "schedule.decay", "must be given with kind wsd"),
    (
        {"schedule.kind": "constant", "schedule.min_lr": 1e-5},
        "schedule.min_lr",
        "has no effect with kind constant",
    ),
    ({"schedule.min_lr": 1e-3}, "schedule.min_lr", "must not be above optimizer.lr (0.0003)"),
    (
        {"schedule.kind": "wsd", "schedule.warmup": 0.5, "schedule.decay": 0.6},
        "schedule.decay",
        "more than the whole run",
    ),
    ({"stop": {"max_time": "1h"}}, "schedule.warmup", "needs the length of the run"),
    (
        {"stop": {"max_time": "1h"}, "schedule.warmup": 10},
        "schedule.decay",
        "needs the length of the run",
    ),
    ({"optimizer.spike_sigma": 5}, "optimizer.spike_sigma", "no effect without optimizer.on_spike"),
    (
        {"optimizer.on_spike": "rewind", "checkpoint.every": None},
        "optimizer.on_spike",
        "needs saves",
    ),
    (
        {"optimizer.weight_decay": 0, "optimizer.decay_on": ["norms"]},
        "optimizer.decay_on",
        "no effect with weight_decay 0",
    ),
    (
        {"evaluation": {"every": None, "at_end": False, "batches": 3}},
        "evaluation.batches",
        "all off",
    ),
    (
        {"evaluation": {"every": None, "at_end": False}, "data.validation": [{"local": "/v"}]},
        "data.validation",
        "all off",
    ),
    (
        {"checkpoint.keep_best": True, "evaluation.every": None},
        "checkpoint.keep_best",
        "needs evaluation.every",
    ),
    ({"checkpoint.keep_every": 1500}, "checkpoint.keep_every", "saves are every 1000 steps"),
    (
        {"checkpoint": {"keep_every": 1000, "every": None, "every_time": "1h"}},
        "checkpoint.keep_every",
        "nothing is saved by steps",
    ),
    ({"logging.loggers": ["csv", "csv"]}, "logging.loggers", "must name csv once"),
    (
        {"logging.loggers": ["csv"], "logging.project": "p"},
        "logging.project",
        "no effect without wandb or mlflow",
    ),
    ({"compute.shard_group": 2}, "compute.shard_group", "without compute.strategy hsdp"),
    (
        {"compute.precision": "16-mixed", "compute.accelerator": "cpu"},
        "compute.precision",
        "needs a GPU",
    ),
    (
        {"compute.strategy": "fsdp2", "compute.devices": 1},
        "compute.strategy",
        "needs more than one device",
    ),
    (
        {"storage.anonymous": True, "storage.profile": "p"},
        "storage.profile",
        "no effect with anonymous",
    ),
    (
        {
            "data.train": [
                {"remote": "s3://b", "storage": {"anonymous": True, "requester_pays": True}}
            ]
        },
        "data.train.0.storage.requester_pays",
        "not possible with anonymous",
    ),
]


def test_the_configuration_that_all_cases_start_from_is_sound() -> None:
    assert config_of(Config, SOUND).batch.global_size == 8


@pytest.mark.parametrize(("changes", "path", "words"), CONTRADICTIONS)
def test_settings_that_contradict_one_another_are_refused(
    changes: dict[str, Any], path: str, words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        config_of(Config, laid_on(changes))
    faults = [fault for fault in caught.value.faults if fault.path == path]
    assert faults, str(caught.value)
    assert words in faults[0].remedy


def test_the_resolved_configuration_never_trips_over_its_own_defaults() -> None:
    for changes in ({}, {"schedule.kind": "constant"}, {"data.shuffle": {"algo": "none"}}):
        resolved = config_of(Config, laid_on(changes)).model_dump(mode="json")
        assert config_of(Config, resolved).model_dump(mode="json") == resolved


def test_a_direct_construction_runs_the_same_checks() -> None:
    with pytest.raises(ValidationError, match=r"give max_tokens"):
        Config.model_validate({**SOUND, "stop": {}})


def test_checks_run_on_the_valid_fields_beside_invalid_ones() -> None:
    values = laid_on({"optimizer.lr": "fast", "batch.micro_size": 3, "schedule.kind": "wsd"})
    with pytest.raises(ConfigError) as caught:
        config_of(Config, values)
    assert {fault.path for fault in caught.value.faults} == {
        "optimizer.lr",
        "batch.micro_size",
        "schedule.decay",
    }


def test_the_defaults_that_the_spike_check_compares_with_are_the_real_ones() -> None:
    fields = OptimizerConfig.model_fields
    assert {key: fields[key].default for key in SPIKE_DEFAULTS} == SPIKE_DEFAULTS


def test_a_stream_overrides_only_what_it_sets() -> None:
    streams = [{"remote": "s3://b/x", "storage": {"region": "eu"}}, {"local": "/d"}]
    config = config_of(Config, laid_on({"storage.retries": 3, "data.train": streams}))
    storage = config.storage_of(config.data.train[0])
    assert (storage.region, storage.retries) == ("eu", 3)
    assert config.storage_of(config.data.train[1]) == config.storage


def test_labels_default_to_the_last_part_of_a_path() -> None:
    config = config_of(Config, SOUND)
    assert (config.run.label, config.data.train[0].label) == ("a", "web")
