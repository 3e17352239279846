"""Numbers of a run -> TensorBoard, CSV, W&B, MLflow, through Lightning's loggers.

In: rows (step, numbers) from the observer. Out: the same run continued after a restart: CSV and
TensorBoard hold every step once, W&B and MLflow are never sent a step that they have. Does not read
device values. Lightning and the services are imported when a sink is made.
"""

from __future__ import annotations

import csv
import importlib.util
import logging
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stream_pretrain.errors import ConfigError, Fault
from stream_pretrain.observe.event_files import cut_event_files
from stream_pretrain.observe.observer import EMPTY, MetricsLogger

PACKAGE_OF = {"csv": None, "tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow"}
RUN_TAG = "stream_pretrain.run_id"

_log = logging.getLogger(__name__)
_MLFLOW_BATCH = 1000  # metrics a request: the service's limit


def logger_faults(names: Sequence[str]) -> list[Fault]:
    """What keeps these loggers from being used: unknown names, packages that are not installed."""
    faults = []
    for name in names:
        package = PACKAGE_OF.get(name, "")
        if package == "":
            known = ", ".join(PACKAGE_OF)
            faults.append(Fault(path="logging.loggers", found=name, remedy=f"use one of {known}"))
        elif package is not None and importlib.util.find_spec(package) is None:
            remedy = f"install its package: pip install 'stream-pretrain[{name}]'"
            faults.append(Fault(path="logging.loggers", found=name, remedy=remedy))
    return faults


def open_sinks(
    names: Sequence[str], *, directory: Path, run_id: str, name: str, project: str | None = None
) -> list[MetricsLogger]:
    """The sinks of a run, in order. `directory` is local (RUN/logs); `run_id` never changes during
    a run.

    Raises ConfigError where a logger is unknown or its package missing, all of them in one message.
    """
    if faults := logger_faults(names):
        raise ConfigError.of(faults)
    directory.mkdir(parents=True, exist_ok=True)
    return [_open_sink(kind, directory, run_id, (name, project)) for kind in dict.fromkeys(names)]


def _open_sink(
    kind: str, directory: Path, run_id: str, names: tuple[str, str | None]
) -> MetricsLogger:
    if kind == "csv":
        return CSVSink(directory)
    if kind == "tensorboard":
        return TensorBoardSink(directory)
    name, project = names[0], names[1] or "stream-pretrain"
    if kind == "wandb":
        return WandbSink(directory, run_id=run_id, name=name, project=project)
    return MLflowSink(directory, run_id=run_id, name=name, project=project)


class CSVSink:
    """`csv/metrics.csv`: one row a step, a column a number."""

    def __init__(self, directory: Path) -> None:
        from lightning.fabric.loggers.csv_logs import CSVLogger

        self._path = directory / "csv" / "metrics.csv"
        self._aside = directory / "metrics.csv.kept"
        never = 1 << 62  # flushed by `flush` alone
        self._logger = CSVLogger(directory, "", "csv", flush_logs_every_n_steps=never)

    def resume(self, step: int) -> int:
        """Cut the file. Lightning's writer deletes one that it finds, so it is put aside meanwhile;
        a kill then loses it, and the observer gives all rows again.
        """
        columns, held = cut_csv(self._path, step)
        if columns:
            self._path.replace(self._aside)
        writer = self._logger.experiment
        if columns:
            self._aside.replace(self._path)
            writer.metrics_keys = columns
        return held

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Keep one row."""
        self._logger.log_metrics(dict(values), step)

    def flush(self) -> None:
        """Write the rows."""
        self._logger.save()

    def close(self) -> None:
        """Write the rows."""
        self._logger.finalize("success")


def cut_csv(path: Path, step: int) -> tuple[list[str], int]:
    """Remove rows beyond `step` and rows that are torn. Returns the columns and the last step left;
    ([], EMPTY) where no row is left, the file is then gone.
    """
    if not path.exists():
        return [], EMPTY
    partial = path.with_name(path.name + ".cut")
    columns: list[str] = []
    last = EMPTY
    with path.open(newline="") as source, partial.open("w", newline="") as kept:
        writer = csv.writer(kept)
        for row in csv.reader(line for line in source if line.endswith("\n")):
            if not columns and "step" in row:
                columns, place = row, row.index("step")
                writer.writerow(row)
            elif columns and len(row) == len(columns) and int(row[place]) <= step:
                writer.writerow(row)
                last = max(last, int(row[place]))
        kept.flush()
        os.fsync(kept.fileno())
    if last == EMPTY:
        partial.unlink()
        path.unlink()
        return [], EMPTY
    partial.replace(path)
    return columns, last


class TensorBoardSink:
    """`tensorboard/events.out.tfevents.*`: a file a start, together every step once."""

    def __init__(self, directory: Path) -> None:
        from lightning.fabric.loggers.tensorboard import TensorBoardLogger

        self._folder = directory / "tensorboard"
        self._logger = TensorBoardLogger(directory, name="", version="tensorboard")

    def resume(self, step: int) -> int:
        """Cut the files. Where steps are missing, the last one there may lack some of its numbers
        (a kill while it was written): it is cut as well, and given again.
        """
        held = cut_event_files(self._folder, step)
        return cut_event_files(self._folder, held - 1) if EMPTY < held < step else held

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Queue the numbers of one step."""
        self._logger.log_metrics(values, step)

    def flush(self) -> None:
        """Write what is queued."""
        self._logger.save()

    def close(self) -> None:
        """Write what is queued and close the file."""
        self._logger.finalize("success")


class WandbSink:
    """A W&B run whose id is the run's. Offline where `WANDB_MODE=offline` says so.

    W&B cannot delete points. The last step sent is written down before it is sent, so after a kill
    a step may be missing there, but none is sent twice.
    """

    def __init__(self, directory: Path, *, run_id: str, name: str, project: str) -> None:
        from lightning.pytorch.loggers.wandb import WandbLogger

        self._sent_path = directory / f"wandb-{run_id}.sent"
        self._sent = EMPTY
        self._logger = WandbLogger(name=name, save_dir=directory, id=run_id, project=project)

    def resume(self, step: int) -> int:
        """Returns the last step that was sent, whatever `step` is."""
        del step
        if self._sent_path.exists():
            self._sent = int(self._sent_path.read_text() or EMPTY)
        known = self._logger.experiment.summary.get("trainer/global_step")
        self._sent = max(self._sent, EMPTY if known is None else int(known))
        return self._sent

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Send the numbers of one step, unless it was sent before."""
        if step <= self._sent:
            return
        self._sent = step
        self._sent_path.write_text(f"{step}\n")
        self._logger.log_metrics(dict(values), step)

    def flush(self) -> None:
        """Nothing to do: W&B sends by itself."""

    def close(self) -> None:
        """Wait until W&B has everything."""
        self._logger.experiment.finish()


class MLflowSink:
    """An MLflow run found again by its tag. `MLFLOW_TRACKING_URI` or a folder beside the other
    logs.
    """

    def __init__(self, directory: Path, *, run_id: str, name: str, project: str) -> None:
        from lightning.pytorch.loggers.mlflow import MLFlowLogger

        tracking_uri = os.environ.get("MLFLOW_TRACKING_URI")
        if tracking_uri is None:  # MLflow 3 asks for this before it writes to a folder
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        self._logger = MLFlowLogger(
            experiment_name=project,
            run_name=name,
            tracking_uri=tracking_uri,
            save_dir=str(directory / "mlflow"),
            tags={RUN_TAG: run_id},
        )
        self._tag = run_id
        self._waiting: list[Any] = []
        self._sent = EMPTY

    def resume(self, step: int) -> int:
        """Returns the last step that the service has, whatever `step` is."""
        del step
        found = self._find()
        if found is not None:
            self._logger._run_id = found
            self._logger.experiment.update_run(found, status="RUNNING")
            history = self._logger.experiment.get_metric_history(found, "train/tokens")
            self._sent = max((point.step for point in history), default=EMPTY)
        return self._sent

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Keep the numbers of one step for the next request, unless the service has the step."""
        if step <= self._sent:
            return
        from mlflow.entities import Metric  # type: ignore[import-not-found, unused-ignore]

        self._sent = step
        now = int(time.time() * 1000)
        self._waiting += [Metric(key, value, now, step) for key, value in values.items()]

    def flush(self) -> None:
        """Send what was kept. A service that does not answer delays its numbers, not the run."""
        try:
            while self._waiting:
                batch = self._waiting[:_MLFLOW_BATCH]
                self._logger.experiment.log_batch(run_id=self._logger.run_id, metrics=batch)
                del self._waiting[: len(batch)]
        except Exception as error:
            _log.warning(
                "MLflow did not take %d numbers, they are sent again later: %s",
                len(self._waiting),
                error,
            )

    def close(self) -> None:
        """Send the rest; the run counts as finished until it goes on."""
        self.flush()
        self._logger.finalize("success")

    def _find(self) -> str | None:
        client = self._logger._mlflow_client
        experiment = client.get_experiment_by_name(self._logger._experiment_name)
        if experiment is None:
            return None
        runs = client.search_runs(
            [experiment.experiment_id], filter_string=f"tags.`{RUN_TAG}` = '{self._tag}'"
        )
        return runs[0].info.run_id if runs else None
