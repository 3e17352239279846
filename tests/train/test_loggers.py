"""Loggers continue the same run: CSV and TensorBoard hold every step once, W&B and MLflow get none
twice.
"""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from stream_pretrain.errors import ConfigError
from stream_pretrain.observe.event_files import NO_STEP, cut_event_files, step_of
from stream_pretrain.observe.events import StepRecord
from stream_pretrain.observe.jsonl import MetricsFile
from stream_pretrain.observe.observer import EMPTY, Observer
from stream_pretrain.observe.throughput import Meter
from stream_pretrain.train.loggers import cut_csv, logger_faults, open_sinks


def run(
    path: Path,
    loggers: list[str],
    *,
    steps: range,
    resumed: bool = True,
    evaluate: tuple[int, ...] = (),
    close: bool = True,
) -> Observer:
    """Train `steps` (the first is the step after the one resumed from) and stop, or be killed."""
    observer = Observer(
        meter=Meter(),
        log_due=lambda step: step % 3 == 0,
        metrics=MetricsFile(path / "metrics.jsonl"),
        loggers=open_sinks(loggers, directory=path / "logs", run_id="run-7", name="try"),
    )
    begin = steps.start - 1
    observer.start(step=begin, tokens=begin * 10, resumed=resumed)
    for step in steps:
        observer.step(
            StepRecord(
                step=step,
                tokens=step * 10,
                epoch=0,
                sample_in_epoch=step,
                loss=100.0 / step,
                lr=0.1,
                grad_norm=1.0,
                digest="",
            )
        )
        if step in evaluate:
            observer.evaluation(step=step, sets={"web": {"loss": float(step)}}, seconds=0.1)
    observer.flush()
    observer.sync()
    if close:
        observer.close()
    return observer


def csv_rows(path: Path) -> list[dict[str, str]]:
    with (path / "logs" / "csv" / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def tensorboard_points(path: Path, tag: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    points = []
    for file in sorted((path / "logs" / "tensorboard").iterdir()):
        for event in EventFileLoader(str(file)).Load():
            for value in event.summary.value:
                if value.tag == tag:
                    points.append((event.step, value.tensor.float_val[0]))
    return sorted(points)


def test_csv_holds_every_step_once_after_a_resume(tmp_path: Path) -> None:
    run(tmp_path, ["csv"], steps=range(1, 8), resumed=False)
    run(tmp_path, ["csv"], steps=range(6, 11), evaluate=(6, 10))
    rows = csv_rows(tmp_path)
    assert [int(row["step"]) for row in rows] == list(range(1, 11))
    assert [float(row["train/loss"]) for row in rows] == [100.0 / step for step in range(1, 11)]
    assert [row["validation/web/loss"] for row in rows][4:] == ["", "6.0", "", "", "", "10.0"]


def test_csv_survives_a_kill_while_it_was_put_aside(tmp_path: Path) -> None:
    run(tmp_path, ["csv"], steps=range(1, 8), resumed=False)
    logs = tmp_path / "logs"
    (logs / "csv" / "metrics.csv").replace(logs / "metrics.csv.kept")
    run(tmp_path, ["csv"], steps=range(6, 8))
    assert [int(row["step"]) for row in csv_rows(tmp_path)] == list(range(1, 8))


def test_a_torn_csv_row_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    assert cut_csv(path, 9) == ([], EMPTY)
    path.write_text("a,step\n1.0,1\n2.0,2\n3.0\n4.0,4\n5.0,")
    assert cut_csv(path, 9) == (["a", "step"], 4)
    assert path.read_text().split() == ["a,step", "1.0,1", "2.0,2", "4.0,4"]
    assert cut_csv(path, 0) == ([], EMPTY)
    assert not path.exists()


def test_tensorboard_holds_every_step_once_after_resumes(tmp_path: Path) -> None:
    run(tmp_path, ["tensorboard"], steps=range(1, 8), resumed=False)
    run(tmp_path, ["tensorboard"], steps=range(6, 9))
    run(tmp_path, ["tensorboard"], steps=range(4, 11), evaluate=(10,))
    points = tensorboard_points(tmp_path, "train/loss")
    assert [step for step, _ in points] == list(range(1, 11))
    assert [value for _, value in points] == pytest.approx([100.0 / step for step in range(1, 11)])
    assert tensorboard_points(tmp_path, "validation/web/loss") == [(10, 10.0)]


def test_tensorboards_own_reader_sees_the_same(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run(tmp_path, ["tensorboard"], steps=range(1, 8), resumed=False)
    run(tmp_path, ["tensorboard"], steps=range(6, 11))
    reader = EventAccumulator(str(tmp_path / "logs" / "tensorboard"), size_guidance={"scalars": 0})
    reader.Reload()
    assert [point.step for point in reader.Scalars("train/loss")] == list(range(1, 11))


@pytest.mark.parametrize("loggers", [["csv"], ["tensorboard"]])
def test_a_logger_added_later_gets_the_steps_before_it(tmp_path: Path, loggers: list[str]) -> None:
    run(tmp_path, [], steps=range(1, 6), resumed=False, evaluate=(3,))
    run(tmp_path, loggers, steps=range(6, 8))
    if loggers == ["csv"]:
        assert [int(row["step"]) for row in csv_rows(tmp_path)] == list(range(1, 8))
    else:
        points = tensorboard_points(tmp_path, "train/loss")
        assert [step for step, _ in points] == list(range(1, 8))


def test_a_start_from_nothing_empties_csv_and_tensorboard(tmp_path: Path) -> None:
    both = ["csv", "tensorboard"]
    run(tmp_path, both, steps=range(1, 8), resumed=False)
    run(tmp_path, both, steps=range(1, 4), resumed=False)
    assert [int(row["step"]) for row in csv_rows(tmp_path)] == [1, 2, 3]
    assert [step for step, _ in tensorboard_points(tmp_path, "train/loss")] == [1, 2, 3]


KILLED = """
import sys, time
from pathlib import Path
sys.path.insert(0, str(Path(sys.argv[2]).parent))
from test_loggers import run
run(Path(sys.argv[1]), ["csv", "tensorboard"], steps=range(1, 200_000), resumed=False)
"""


def test_a_run_killed_at_any_instant_goes_on_with_every_step_once(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path), __file__])
    metrics = tmp_path / "metrics.jsonl"
    while not metrics.exists() or metrics.stat().st_size < 100_000:
        time.sleep(0.01)
        assert child.poll() is None
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    run(tmp_path, ["csv", "tensorboard"], steps=range(151, 161))
    assert [int(row["step"]) for row in csv_rows(tmp_path)] == list(range(1, 161))
    for tag in ("train/loss", "train/tokens", "train/sample_in_epoch"):
        assert [step for step, _ in tensorboard_points(tmp_path, tag)] == list(range(1, 161))


def test_a_torn_event_file_keeps_its_whole_records(tmp_path: Path) -> None:
    run(tmp_path, ["tensorboard"], steps=range(1, 4), resumed=False)
    folder = tmp_path / "logs" / "tensorboard"
    (file,) = folder.iterdir()
    file.write_bytes(file.read_bytes()[:-3])
    assert cut_event_files(folder, 9) == 3
    steps = {step for step, _ in tensorboard_points(tmp_path, "train/tokens")}
    assert steps == {1, 2, 3}
    assert cut_event_files(folder, NO_STEP) == NO_STEP
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("step", [0, 1, 127, 128, 300, 2**31, 2**40])
def test_a_step_is_read_from_an_event_as_tensorboard_writes_it(step: int) -> None:
    from tensorboard.compat.proto.event_pb2 import Event

    assert step_of(Event(wall_time=1.5, step=step).SerializeToString()) == step
    assert step_of(Event(wall_time=1.5, file_version="brain.Event:2").SerializeToString()) is None


def test_unknown_loggers_and_missing_packages_are_refused_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.util.find_spec

    def find_spec(name: str, package: str | None = None) -> Any:
        return None if name in ("wandb", "mlflow") else real(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    assert logger_faults(["csv"]) == []
    with pytest.raises(ConfigError) as caught:
        open_sinks(["wandb", "mlflow", "abacus"], directory=tmp_path, run_id="r", name="n")
    text = str(caught.value)
    assert "pip install 'stream-pretrain[wandb]'" in text
    assert "pip install 'stream-pretrain[mlflow]'" in text
    assert "logging.loggers is abacus: use one of csv, tensorboard, wandb, mlflow" in text


needs_wandb = pytest.mark.skipif(
    importlib.util.find_spec("wandb") is None, reason="the extra wandb is not installed"
)
needs_mlflow = pytest.mark.skipif(
    importlib.util.find_spec("mlflow") is None, reason="the extra mlflow is not installed"
)


@needs_wandb
@pytest.mark.slow
def test_wandb_gets_no_step_twice_and_keeps_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    run(tmp_path, ["wandb"], steps=range(1, 8), resumed=False)
    run(tmp_path, ["wandb"], steps=range(6, 11))
    import wandb

    wandb.teardown()  # ends W&B's own process, which writes the files
    sent = [step for file in wandb_files(tmp_path) for step in wandb_steps(file)]
    assert sent == list(range(1, 11))
    assert len(wandb_files(tmp_path)) == 2
    assert all(file.name == "run-run-7.wandb" for file in wandb_files(tmp_path))


def wandb_files(path: Path) -> list[Path]:
    files = (path / "logs" / "wandb").glob("offline-run-*/*.wandb")
    return sorted(files, key=lambda file: file.stat().st_mtime)


def wandb_steps(file: Path) -> list[int]:
    """The steps in a file of records: a 7-byte header, then 32 KiB blocks of (checksum, length,
    kind).
    """
    from wandb.proto import wandb_internal_pb2

    data, record, steps, place = file.read_bytes(), b"", [], 7
    while place + 7 <= len(data):
        if (left := -place % 32768) < 7 and left:
            place += left
            continue
        length, kind = struct.unpack_from("<HB", data, place + 4)
        record += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            message = wandb_internal_pb2.Record.FromString(record)
            record = b""
            for item in message.history.item:
                if (item.key or "/".join(item.nested_key)) == "trainer/global_step":
                    steps.append(json.loads(item.value_json))
    return steps


@needs_mlflow
@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_mlflow_gets_no_step_twice_and_keeps_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run(tmp_path, ["mlflow"], steps=range(1, 8), resumed=False)
    run(tmp_path, ["mlflow"], steps=range(6, 11), evaluate=(9,))
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"file:{tmp_path}/logs/mlflow")
    experiment = client.get_experiment_by_name("stream-pretrain")
    (only,) = client.search_runs([experiment.experiment_id])
    history = client.get_metric_history(only.info.run_id, "train/loss")
    assert sorted(point.step for point in history) == list(range(1, 11))
    (evaluation,) = client.get_metric_history(only.info.run_id, "validation/web/loss")
    assert evaluation.step == 9
    assert only.info.status == "FINISHED"


@needs_mlflow
@pytest.mark.filterwarnings("default")
def test_an_mlflow_service_that_fails_delays_its_numbers_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from mlflow.tracking import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (sink,) = open_sinks(["mlflow"], directory=tmp_path, run_id="run-7", name="try")
    assert sink.resume(EMPTY) == EMPTY
    real = MlflowClient.log_batch

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(MlflowClient, "log_batch", refuse)
    sink.log(1, {"train/tokens": 10.0})
    sink.flush()
    assert "no route to host" in caplog.text
    monkeypatch.setattr(MlflowClient, "log_batch", real)
    sink.log(2, {"train/tokens": 20.0})
    sink.close()
    (again,) = open_sinks(["mlflow"], directory=tmp_path, run_id="run-7", name="try")
    assert again.resume(1) == 2
    again.close()
