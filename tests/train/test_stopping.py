"""Stopping: finish the step, save, leave with 75; from one rank, the parent, or the whole group;
workers survive it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from forked_runs import ForkedRuns, Kill
from runs import assert_same, end_of, steps
from small import TOTAL_STEPS, fit_arguments

from stream_pretrain.audit.subprocess_runs import last_step
from stream_pretrain.runtime.stop import ONE_REQUEST_S


@pytest.fixture(scope="module")
def whole(forked_runs: ForkedRuns, dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody stops."""
    root = tmp_path_factory.mktemp("whole")
    done = forked_runs.run(fit_arguments(dataset, root / "run"), root / "log")
    assert done.code == 0, done.log
    return root / "run"


def stop_record(run: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((run / "stop.json").read_text())
    return found


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGUSR1"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_signal_to_the_whole_group_saves_and_leaves_with_75(
    name: str, workers: int, forked_runs: ForkedRuns, dataset: Path, whole: Path, tmp_path: Path
) -> None:
    arguments = fit_arguments(dataset, tmp_path / "run", data__workers=workers)
    done = forked_runs.run(arguments, tmp_path / "log", kill=Kill("updated", 18, signal=name))
    assert done.code == 75, done.log
    stopped = end_of(tmp_path / "run").step
    assert stopped in (18, 19)  # Python runs a handler some instructions after the signal
    assert stop_record(tmp_path / "run") | {"time": 0} == {
        "code": 75,
        "reason": name,
        "step": stopped,
        "time": 0,
    }
    assert "run the same command to go on" in done.log
    assert forked_runs.run(arguments, tmp_path / "log").code == 0
    assert_same(tmp_path / "run", whole)
    assert stop_record(tmp_path / "run")["code"] == 0


@pytest.mark.parametrize("rank", [0, 1])
def test_a_signal_to_one_rank_stops_all_at_the_same_step(
    rank: int, forked_runs: ForkedRuns, dataset: Path, tmp_path: Path
) -> None:
    arguments = fit_arguments(dataset, tmp_path / "run", compute__devices=2, data__workers=1)
    kill = Kill("updated", 18, signal="SIGTERM", rank=rank, whole_session=False)
    done = forked_runs.run(arguments, tmp_path / "log", ranks=2, kill=kill)
    assert done.codes == [75, 0], done.log
    assert end_of(tmp_path / "run").step in (18, 19)
    assert forked_runs.run(arguments, tmp_path / "log", ranks=2).codes == [0, 0]
    assert sorted(steps(tmp_path / "run")) == list(range(1, TOTAL_STEPS + 1))


WAITING = """
import sys, time
from stream_pretrain.runtime.stop import SignalFlag
flag = SignalFlag()
flag.install()
print("ready", flush=True)
while True:
    time.sleep(0.01)
    if flag.name and len(sys.argv) > 1:
        print(flag.name, flush=True)
        time.sleep(0.5)
        sys.exit(0)
"""


def test_a_second_signal_leaves_at_once() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", WAITING], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    child.send_signal(signal.SIGTERM)
    time.sleep(ONE_REQUEST_S + 0.2)
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=60)
    assert child.returncode == 128 + signal.SIGINT
    assert "Second signal" in said


def test_two_signals_at_once_are_one_request() -> None:
    """`timeout` signals the process and then its group."""
    child = subprocess.Popen(
        [sys.executable, "-c", WAITING, "leave"], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    child.send_signal(signal.SIGTERM)
    assert child.stdout.readline() == "SIGTERM\n"
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=60)
    assert child.returncode == 0


@pytest.mark.parametrize("point", ["waiting for data"])
def test_a_signal_to_the_group_while_workers_start_saves_and_leaves_with_75(
    point: str, dataset: Path, tmp_path: Path
) -> None:
    """The fork server of the workers must not die of it."""
    run = tmp_path / "run"
    arguments = fit_arguments(dataset, run, data__workers=2, stop__max_epochs=4000)
    arguments += ["--schedule.kind", "constant"]
    command = [sys.executable, "-m", "stream_pretrain.cli", *arguments]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True, text=True)
    try:
        deadline = time.monotonic() + 120
        while not (run / "metrics.jsonl").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.2)
        os.killpg(child.pid, signal.SIGTERM)
        _, said = child.communicate(timeout=120)
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
    assert child.returncode == 75, (point, said)
    assert stop_record(run)["code"] == 75


def test_workers_that_are_killed_cost_no_step(
    forked_runs: ForkedRuns, dataset: Path, whole: Path, tmp_path: Path
) -> None:
    arguments = fit_arguments(dataset, tmp_path / "run", data__workers=2, checkpoint__every=1000)
    done = forked_runs.run(arguments, tmp_path / "log", kill=Kill("updated", 18, signal="workers"))
    assert done.code == 1, done.log
    assert "A data worker died" in done.log
    assert "is saved; run the same command to go on" in done.log
    assert end_of(tmp_path / "run").step >= 18
    assert forked_runs.run(arguments, tmp_path / "log").code == 0
    assert_same(tmp_path / "run", whole)


def test_max_time_ends_the_run_as_finished(
    forked_runs: ForkedRuns, dataset: Path, tmp_path: Path
) -> None:
    settings = {"stop__max_epochs": 4000, "stop__max_time": "1s", "schedule__kind": "constant"}
    done = forked_runs.run(fit_arguments(dataset, tmp_path / "run", **settings), tmp_path / "log")
    assert done.code == 0, done.log
    assert stop_record(tmp_path / "run")["reason"] == "max_time"
    assert end_of(tmp_path / "run").step == max(steps(tmp_path / "run"))


def test_slurms_end_time_stops_the_run_in_time_to_go_on(
    forked_runs: ForkedRuns, dataset: Path, tmp_path: Path
) -> None:
    settings = {"stop__max_epochs": 4000, "schedule__kind": "constant"}
    end = {"SLURM_JOB_END_TIME": str(int(time.time()) + 3)}
    arguments = fit_arguments(dataset, tmp_path / "run", **settings)
    done = forked_runs.run(arguments, tmp_path / "log", environment=end)
    assert done.code == 75, done.log
    assert stop_record(tmp_path / "run")["reason"] == "deadline"


def test_a_second_start_on_the_same_run_directory_is_refused(
    forked_runs: ForkedRuns, dataset: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "-m", "stream_pretrain.cli"]
    arguments = fit_arguments(dataset, run, stop__max_epochs=4000, schedule__kind="constant")
    first = subprocess.Popen(
        [*command, *arguments], stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        deadline = time.monotonic() + 120
        while last_step(run / "metrics.jsonl") < 4 and time.monotonic() < deadline:
            time.sleep(0.05)
        second = forked_runs.run(arguments, tmp_path / "log")
        assert second.code == 1
        assert f"process {first.pid}" in second.log or f"pid {first.pid}" in second.log, second.log
        assert first.poll() is None
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
    after = forked_runs.run([*arguments, "--stop.max_time", "1s"], tmp_path / "log2")
    assert after.code == 0, after.log
