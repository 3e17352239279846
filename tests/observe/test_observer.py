"""Every step has its line, in order, without waiting for the device at every step."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from stream_pretrain.observe.console import StatusLine
from stream_pretrain.observe.events import StepRecord, read_value
from stream_pretrain.observe.jsonl import MetricsFile, read_events
from stream_pretrain.observe.observer import EMPTY, Observer, RunLimits
from stream_pretrain.observe.throughput import Meter


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class DeviceValue:
    """A number that lies on a device: counts how often the host waits for it."""

    reads = 0

    def __init__(self, value: float) -> None:
        self.value = value

    def item(self) -> float:
        DeviceValue.reads += 1
        return self.value


class RecordingLogger:
    def __init__(self, held: int = EMPTY) -> None:
        self.calls: list[Any] = []
        self.held = held

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.calls.append((step, dict(values)))

    def resume(self, step: int) -> int:
        self.calls.append(("cut", step))
        return min(step, self.held)

    def flush(self) -> None:
        self.calls.append("flush")

    def logged(self) -> list[tuple[int, dict[str, float]]]:
        return [call for call in self.calls if isinstance(call[0], int)]

    def close(self) -> None:
        self.calls.append("close")


class Job:
    """An observer with a fake clock and the smallest loop around it."""

    made: ClassVar[list[Job]] = []

    def __init__(self, path: Path, *, every: int = 5, stream: io.StringIO | None = None) -> None:
        self.clock = Clock()
        self.logger = RecordingLogger()
        self.metrics = MetricsFile(path / "metrics.jsonl")
        console = StatusLine(mode="plain", stream=stream, every_seconds=0) if stream else None
        self.observer = Observer(
            meter=Meter(clock=self.clock),
            log_due=lambda step: step % every == 0,
            metrics=self.metrics,
            console=console,
            loggers=[self.logger],
            limits=RunLimits(steps=100, tokens=10_000),
            clock=self.clock,
        )
        Job.made.append(self)

    def step(self, number: int, **changes: Any) -> list[dict[str, Any]]:
        self.clock.now += 2
        fields: dict[str, Any] = {
            "step": number,
            "tokens": number * 100,
            "epoch": 0,
            "sample_in_epoch": number * 4,
            "loss": DeviceValue(1 / number),
            "lr": 0.01,
            "grad_norm": DeviceValue(0.5),
            "digest": f"{number:016x}",
        }
        return self.observer.step(StepRecord(**{**fields, **changes}))

    def written(self) -> list[dict[str, Any]]:
        return list(read_events(self.metrics.path))


@pytest.fixture(autouse=True)
def _close_files() -> Iterator[None]:
    yield
    while Job.made:
        Job.made.pop().metrics.close()


def names(events: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(event["event"], event["step"]) for event in events]


def test_device_values_are_read_at_logging_intervals_only(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.observer.start(step=0, tokens=0, resumed=False, versions={"x": "1"})
    DeviceValue.reads = 0
    for number in range(1, 5):
        assert job.step(number) == []
    assert DeviceValue.reads == 0
    assert names(job.written()) == [("start", 0)]
    read = job.step(5)
    assert DeviceValue.reads == 10
    assert [event["loss"] for event in read] == [1 / number for number in range(1, 6)]
    assert names(job.written()) == [("start", 0)] + [("step", number) for number in range(1, 6)]


def test_a_step_line_has_the_fields_that_are_promised(tmp_path: Path) -> None:
    job = Job(tmp_path, every=1)
    job.observer.start(step=0, tokens=0, resumed=False)
    with job.observer.during("data"):
        job.clock.now += 2
    job.step(1, stream_tokens={"web": 60, "code": 40}, data_step=3, extra={"skipped": lambda: 2})
    event = job.written()[-1]
    assert event == {
        "event": "step",
        "step": 1,
        "time": 1004.0,
        "tokens": 100,
        "epoch": 0,
        "sample_in_epoch": 4,
        "loss": 1.0,
        "lr": 0.01,
        "grad_norm": 0.5,
        "tokens_per_second": 25.0,
        "data_wait": 0.5,
        "seconds": 4.0,
        "digest": "0000000000000001",
        "data_step": 3,
        "stream_tokens": {"web": 60, "code": 40},
        "skipped": 2,
    }


def test_speed_after_a_resume_counts_only_new_tokens(tmp_path: Path) -> None:
    job = Job(tmp_path, every=1)
    job.observer.start(step=50, tokens=5000, resumed=True)
    assert job.step(51)[0]["tokens_per_second"] == pytest.approx(50)


def test_an_evaluation_comes_after_the_steps_before_it(tmp_path: Path) -> None:
    job = Job(tmp_path, every=100)
    job.observer.start(step=0, tokens=0, resumed=False)
    job.step(1)
    with job.observer.during("evaluation"):
        job.clock.now += 3
    sets = {"web": {"loss": 0.0}, "code": {"loss": 1e4}}
    job.observer.evaluation(step=1, sets=sets)
    assert names(job.observer.read()) == [("step", 1)]
    events = job.written()
    assert names(events) == [("start", 0), ("step", 1), ("evaluation", 1), ("evaluation", 1)]
    assert [event.get("set") for event in events[2:]] == ["web", "code"]
    assert events[2]["perplexity"] == 1.0
    assert events[2]["seconds"] == 1.5
    assert events[3]["nonfinite"] == {"perplexity": "inf"}
    assert job.step(2) == []
    assert names(job.observer.read()) == [("step", 2)]
    assert job.observer.read() == []


def test_a_save_flushes_and_counts_the_time_that_training_was_blocked(tmp_path: Path) -> None:
    job = Job(tmp_path, every=100)
    job.observer.start(step=0, tokens=0, resumed=False)
    job.step(1)
    job.step(2)
    with job.observer.during("save"):
        assert names(job.written())[-1] == ("step", 2)
        job.clock.now += 4
    job.observer.save(step=2, bytes=10)
    assert job.written()[-1] == {
        "event": "save",
        "step": 2,
        "time": job.clock.now,
        "seconds": 4.0,
        "bytes": 10,
    }


def test_a_resume_cuts_what_the_killed_process_wrote_beyond_it(tmp_path: Path) -> None:
    job = Job(tmp_path, every=1)
    job.observer.start(step=0, tokens=0, resumed=False)
    for number in range(1, 8):
        job.step(number)
    again = Job(tmp_path, every=1)
    again.observer.start(step=5, tokens=500, resumed=True)
    for number in range(6, 9):
        again.step(number)
    steps = [event["step"] for event in again.written() if event["event"] == "step"]
    assert steps == list(range(1, 9))
    assert ("resume", 5) in names(again.written())
    assert again.logger.calls[0] == ("cut", 5)


def test_a_start_from_nothing_forgets_a_run_that_never_saved(tmp_path: Path) -> None:
    job = Job(tmp_path, every=1)
    job.observer.start(step=0, tokens=0, resumed=False)
    job.observer.evaluation(step=0, sets={"web": {"loss": 9.0}})
    job.step(1)
    again = Job(tmp_path, every=1)
    again.observer.start(step=0, tokens=0, resumed=False)
    assert names(again.written()) == [("start", 0)]
    assert again.logger.calls == [("cut", EMPTY)]


def test_a_logger_gets_a_step_once_with_its_evaluation(tmp_path: Path) -> None:
    job = Job(tmp_path, every=1)
    job.observer.start(step=0, tokens=0, resumed=False)
    job.step(1, stream_tokens={"web": 60})
    job.observer.evaluation(step=1, sets={"web": {"loss": 2.0}}, seconds=1.0)
    job.step(2)
    job.observer.stop(step=2, reason="max_steps")
    job.observer.close()
    logged = job.logger.logged()
    assert [step for step, _ in logged] == [1, 2]
    assert logged[0][1]["train/loss"] == 1.0
    assert logged[0][1]["train/stream_tokens/web"] == 60
    assert logged[0][1]["validation/web/loss"] == 2.0
    assert not any("digest" in name for name in logged[0][1])
    assert job.logger.calls[-1] == "close"


def test_a_logger_that_lacks_steps_is_given_them_at_a_resume(tmp_path: Path) -> None:
    job = Job(tmp_path, every=1)
    job.observer.start(step=0, tokens=0, resumed=False)
    for number in range(1, 8):
        job.step(number)
        if number == 4:
            job.observer.evaluation(step=4, sets={"web": {"loss": 2.0}}, seconds=1.0)
    job.metrics.close()
    again = Job(tmp_path, every=1)
    again.logger.held = 2
    again.observer.start(step=5, tokens=500, resumed=True)
    rows = again.logger.calls[1:]
    assert [step for step, _ in rows] == [3, 4, 5]
    assert rows[1][1]["validation/web/loss"] == 2.0
    assert rows[1][1] == job.logger.logged()[3][1]


def test_loggers_may_come_with_the_start(tmp_path: Path) -> None:
    job = Job(tmp_path, every=1)
    late = RecordingLogger()
    job.observer.start(step=0, tokens=0, resumed=False, loggers=[late])
    job.step(1)
    job.step(2)
    assert late.logged() == job.logger.logged()
    assert "loggers" not in job.written()[0]


def test_a_sync_hands_over_a_copy_that_holds_all_lines_so_far(tmp_path: Path) -> None:
    job = Job(tmp_path, every=1)
    job.observer.start(step=0, tokens=0, resumed=False)
    job.step(1)
    seen: list[int] = []

    def publish(path: Path) -> None:
        job.step(2)
        seen.extend(event["step"] for event in read_events(path))

    job.observer.sync(publish)
    assert seen == [0, 1]
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]
    assert "flush" in job.logger.calls


def test_a_sync_from_the_savers_thread_never_sees_half_a_line(tmp_path: Path) -> None:
    job = Job(tmp_path, every=3)
    job.observer.start(step=0, tokens=0, resumed=False)
    sizes: list[int] = []
    done = threading.Event()

    def publish(path: Path) -> None:
        assert path.read_bytes().endswith(b"\n")
        sizes.append(len(list(read_events(path))))

    def save_again_and_again() -> None:
        while not done.is_set():
            job.observer.sync(publish)

    saver = threading.Thread(target=save_again_and_again)
    saver.start()
    for number in range(1, 301):
        job.step(number)
    done.set()
    saver.join(timeout=60)
    assert not saver.is_alive()
    assert sizes == sorted(sizes)
    steps = [event["step"] for event in job.written() if event["event"] == "step"]
    assert steps == list(range(1, 301))


def test_a_failed_upload_leaves_no_copy_behind(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.observer.start(step=0, tokens=0, resumed=False)

    def publish(_: Path) -> None:
        raise OSError("no route")

    with pytest.raises(OSError, match="no route"):
        job.observer.sync(publish)
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_the_stop_line_is_last_and_the_rest_is_returned(tmp_path: Path) -> None:
    job = Job(tmp_path, every=100)
    job.observer.start(step=0, tokens=0, resumed=False)
    job.step(1)
    assert names(job.observer.stop(step=1, reason="signal SIGTERM")) == [("step", 1)]
    assert job.written()[-1]["reason"] == "signal SIGTERM"


def test_a_rank_that_writes_nothing_reads_the_same_values() -> None:
    observer = Observer(meter=Meter(), log_due=lambda _: True)
    observer.start(step=0, tokens=0, resumed=False)
    record = StepRecord(
        step=1, tokens=9, epoch=0, sample_in_epoch=1, loss=2.0, lr=0.1, grad_norm=None, digest=""
    )
    assert observer.step(record)[0]["loss"] == 2.0
    observer.sync()
    observer.close()


def test_a_person_sees_steps_evaluations_and_messages(tmp_path: Path) -> None:
    stream = io.StringIO()
    job = Job(tmp_path, stream=stream)
    job.observer.start(step=0, tokens=0, resumed=False)
    job.observer.print_line("starting")
    for number in range(1, 11):
        job.step(number)
    job.observer.evaluation(step=10, sets={"web": {"loss": 2.0, "bits_per_byte": 0.9}})
    job.observer.close()
    assert stream.getvalue().splitlines() == [
        "starting",
        "step 5/100  loss 0.2000  lr 1.00e-02  norm 0.5  50 tok/s  data 0.0 %  save 0.0 %",
        "step 10/100  loss 0.1000  lr 1.00e-02  norm 0.5  50 tok/s  0:03:00 left"
        "  data 0.0 %  save 0.0 %",
        "evaluation at step 10: web  loss 2.0000  perplexity 7.389  bits/byte 0.9000",
    ]


def test_values_may_be_numbers_device_values_callables_or_mappings() -> None:
    torch = pytest.importorskip("torch")
    value = {"a": torch.tensor(1.5), "b": [lambda: 2, torch.tensor([1, 2])], "c": None}
    assert read_value(value) == {"a": 1.5, "b": [2, [1, 2]], "c": None}
    with pytest.raises(
        TypeError, match="must be a number, a device value or a callable, got object"
    ):
        read_value(object())


def test_nothing_heavy_is_imported() -> None:
    code = (
        "import sys, stream_pretrain.observe.observer as o;"
        "heavy = {'torch', 'numpy', 'rich', 'lightning', 'pydantic'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
