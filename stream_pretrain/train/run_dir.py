"""The run directory's own files. In: a store, a config. Out: config.yaml, stop.json, staging and
extras. No tensors.

`config.yaml` is written before the first step and stays; every further start writes `config.N.yaml`
beside it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from stream_pretrain.config.sections import Config
from stream_pretrain.config.yaml import dump_yaml
from stream_pretrain.errors import ConfigError, Fault
from stream_pretrain.storage.location import is_remote
from stream_pretrain.storage.store import Store, open_store
from stream_pretrain.system.paths import user_cache_dir
from stream_pretrain.train.data_sources import DataSources, tokenizer_files

CONFIG_NAME = "config.yaml"
STOP_NAME = "stop.json"
METRICS_NAME = "metrics.jsonl"
PACKAGES = (
    "stream-pretrain",
    "torch",
    "lightning",
    "litgpt",
    "mosaicml-streaming",
    "tokenizers",
    "numpy",
)


def versions() -> dict[str, str]:
    """Versions of what decides the numbers of a run."""
    return {name: version(name) for name in PACKAGES}


def open_run(config: Config) -> Store:
    """The run directory as a store; a local one is made."""
    run = open_store(config.run.dir, config.storage)
    if run.is_local:
        run.path.mkdir(parents=True, exist_ok=True)
    return run


def staging_directory(config: Config, run: Store) -> Path:
    """Local directory for checkpoints under way and other working files of this run."""
    if config.checkpoint.staging is not None:
        path = Path(config.checkpoint.staging)
    elif run.is_local:
        path = run.path / ".staging"
    else:
        name = hashlib.sha256(run.location.encode()).hexdigest()[:16]
        path = user_cache_dir() / "staging" / name
    path.mkdir(parents=True, exist_ok=True)
    return path


def check_fresh(config: Config, run: Store) -> None:
    """`run.resume: never` refuses a run directory that holds anything."""
    if config.run.resume == "never" and run.head(CONFIG_NAME) is not None:
        fault = Fault(
            path="run.dir",
            found=config.run.dir,
            remedy="is not empty, and run.resume is never; choose another directory, or set "
            "run.resume to auto to go on",
        )
        raise ConfigError.of([fault])


def write_config(config: Config, run: Store, facts: dict[str, Any]) -> str:
    """Write the resolved configuration with versions and fingerprints; returns the file's name."""
    number = sum(
        info.key.startswith("config") and info.key.endswith(".yaml") and "/" not in info.key
        for info in run.list("")
    )
    name = CONFIG_NAME if number == 0 else f"config.{number}.yaml"
    resolved = with_absolute_paths(config)
    head = "# " + json.dumps({"versions": versions(), **facts}, sort_keys=True) + "\n"
    run.write(name, (head + dump_yaml(resolved)).encode())
    return name


def with_absolute_paths(config: Config) -> dict[str, Any]:
    """The configuration in plain values; streams on this machine by absolute path, so that whoever
    asks about the run later may do so from any directory.
    """
    resolved = config.model_dump(mode="json")
    for stream in [*resolved["data"]["train"], *resolved["data"]["validation"]]:
        for key in ("local", "remote"):
            if stream[key] is not None and not is_remote(stream[key]):
                stream[key] = str(Path(stream[key]).absolute())
    return resolved


def write_stop(run: Store, *, code: int, reason: str, step: int) -> None:
    """`stop.json`: how the last process ended, for launchers that lose exit codes."""
    record = {"code": code, "reason": reason, "step": step, "time": time.time()}
    run.write(STOP_NAME, (json.dumps(record, sort_keys=True) + "\n").encode())


def make_extras(staging: Path, sources: DataSources, config: Config, model_config: str) -> Path:
    """What every checkpoint carries along: the tokenizer and `model_config.yaml`."""
    extras = staging / "extras"
    shutil.rmtree(extras, ignore_errors=True)
    extras.mkdir(parents=True)
    (extras / "model_config.yaml").write_text(model_config)
    found = tokenizer_files(sources.train[0], config)
    if found is not None:
        store, prefix = found
        for info in store.list(prefix):
            name = Path(info.key).name
            store.download(info.key, extras / "tokenizer" / name, size=info.size)
    return extras


def local_metrics(run: Store, staging: Path) -> Path:
    """Where `metrics.jsonl` is written: in a local run directory itself; for a bucket, a fetched
    copy in staging.
    """
    if run.is_local:
        return run.path / METRICS_NAME
    path = staging / METRICS_NAME
    found = run.head(METRICS_NAME)
    path.unlink(missing_ok=True)
    if found is not None:
        run.download(METRICS_NAME, path, size=found.size)
    return path
