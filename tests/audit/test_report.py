"""A report shows the events of a run, loads nothing, and contains no secret."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from stream_pretrain.audit.report import write_report
from stream_pretrain.audit.report_data import read_report_data, smooth
from stream_pretrain.audit.report_page import ReportSources, page
from stream_pretrain.errors import DataError
from stream_pretrain.observe.events import (
    StepRecord,
    evaluation_events,
    resume_event,
    save_event,
    start_event,
    step_event,
    stop_event,
)
from stream_pretrain.observe.jsonl import Event, MetricsFile
from stream_pretrain.storage.store import Store, open_store

VOID = {"meta", "br", "link", "path", "line", "circle"}


LAST = {"applied": False, "stream_loss": {"web": 0.5, "code?sig=SIG3": 0.5}}


def step(number: int, time: float, **changes: Any) -> Event:
    fields: dict[str, Any] = {
        "step": number,
        "tokens": number * 1000,
        "epoch": number // 8,
        "sample_in_epoch": number,
        "loss": 10.0 / number,
        "lr": 0.01,
        "grad_norm": 1.0,
        "digest": f"{number:016x}",
    }
    rates = {"tokens_per_second": 500.0, "data_wait": 0.25, "seconds": 2.0}
    return step_event(StepRecord(**{**fields, **changes}), time=time, rates=rates)


def a_run() -> list[Event]:
    """Stopped by a signal after step 6, killed after step 10, finished with step 20."""
    events = [
        start_event(step=0, time=100.0, versions={"torch": "2.9"}, device="cpu", world_size=1)
    ]
    events += [step(n, 100.0 + 2 * n) for n in range(1, 7)]
    events += evaluation_events(
        step=6, time=115.0, sets={"web": {"loss": 2.0, "bits_per_byte": 0.8}}, seconds=3.0
    )
    events += [save_event(step=6, time=116.0, seconds=1.0)]
    events += [stop_event(step=6, time=116.0, reason="signal SIGTERM")]
    events += [resume_event(step=6, time=146.0, versions={"torch": "2.9"}, world_size=2)]
    mixture = {"web": 600, "a <b> & c": 400}
    events += [step(n, 146.0 + 2 * (n - 6)) for n in range(7, 11)]
    events += [resume_event(step=10, time=160.0, world_size=2, endpoint="https://me:pw@host/x")]
    events += [step(n, 160.0 + 2 * (n - 10), stream_tokens=mixture) for n in range(11, 20)]
    events += [step(20, 180.0, loss=math.nan, extra=LAST)]
    events += evaluation_events(step=20, time=181.0, sets={"web": {"loss": 1.5}}, seconds=1.0)
    events += [stop_event(step=20, time=181.0, reason="max_steps")]
    return events


def write_run(path: Path, events: list[Event], config: str = "run:\n  dir: x\n") -> Path:
    metrics = MetricsFile(path / "metrics.jsonl")
    for event in events:
        metrics.append(event)
    metrics.close()
    (path / "config.yaml").write_text(config)
    return path


class Checker(HTMLParser):
    """Fail on tags that do not match; collect the text and what would be loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self.fetched += [
            str(v) for k, v in attrs if k in ("src", "srcset") or (tag, k) == ("link", "href")
        ]

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def check(html: str) -> str:
    """Check the structure of a page, and return its text."""
    checker = Checker()
    checker.feed(html)
    assert checker.open == []
    assert checker.fetched == []
    assert not re.search(r"url\(|@import|<script", html)
    return re.sub(r"\s+", " ", " ".join(checker.text))


def test_a_report_has_all_its_parts(tmp_path: Path) -> None:
    run = write_run(tmp_path, a_run())
    where = write_report(open_store(run))
    assert Path(where) == run / "report.html"
    html = (run / "report.html").read_text()
    text = check(html)
    for part in (
        "Loss",
        "Loss of each stream",
        "Learning rate",
        "Gradient norm",
        "Throughput",
        "Time spent waiting for data",
        "Validation",
        "Where the time went",
        "Data mixture",
        "Starts and stops",
        "Environment",
        "Configuration",
    ):
        assert part in text, part
    assert "Stopped on 1970-01-01 00:03:01, at step 20: max_steps." in text
    assert "epoch 1" in text
    assert "restart at step 10" in text
    assert "a <b> & c" in text
    assert "signal SIGTERM" in text
    assert "killed" in text
    assert "versions torch" not in text  # of the last start only
    assert '<a href="config.yaml">' in html
    assert 'name="viewport"' in html
    assert "prefers-color-scheme:dark" in html


def test_secrets_never_reach_the_page(tmp_path: Path) -> None:
    config = (
        "data:\n  train:\n  - remote: https://host/data?X-Amz-Signature=SIG1&x=SIG2\n"
        "  - remote: s3://me:PASS1@bucket/x\nstorage:\n  aws_secret_access_key: PASS2\n"
    )
    run = write_run(tmp_path, a_run(), config)
    write_report(open_store(run))
    html = (run / "report.html").read_text()
    for secret in ("SIG1", "SIG2", "SIG3", "PASS1", "PASS2", "me:pw"):
        assert secret not in html
    assert "https://***@host/x" in html
    assert "s3://***@bucket/x" in html


def test_the_time_is_accounted_for_to_the_last_second() -> None:
    history = read_report_data(a_run())
    spent = history.time_spent()
    assert spent["training"] == pytest.approx(30.0)
    assert spent["waiting for data"] == pytest.approx(10.0)
    assert spent["evaluation"] == pytest.approx(4.0)
    assert spent["saving"] == pytest.approx(1.0)
    assert spent["not running"] == pytest.approx(30.0 + 6.0)
    assert sum(spent.values()) == pytest.approx(history.total_s) == pytest.approx(81.0)


def test_sessions_epochs_and_skipped_updates_are_found() -> None:
    history = read_report_data(a_run())
    found = [(s.kind, s.step, s.last_step, s.reason) for s in history.sessions]
    assert found == [
        ("start", 0, 6, "signal SIGTERM"),
        ("resume", 6, 10, None),
        ("resume", 10, 20, "max_steps"),
    ]
    assert history.epochs == [(1, 0), (8, 1), (16, 2)]
    assert history.skipped == 1
    assert history.saves == 1
    assert history.stream_tokens == {"web": 600, "a <b> & c": 400}


def test_a_run_that_goes_on_is_reported_as_far_as_it_came(tmp_path: Path) -> None:
    run = write_run(tmp_path, a_run()[:5])
    out = tmp_path / "elsewhere" / "r.html"
    assert write_report(open_store(run), out) == str(out)
    assert not (run / "report.html").exists()
    text = check(out.read_text())
    assert "Running, or killed: last event on 1970-01-01 00:01:48, at step 4." in text
    assert "still running, or killed" in text


@pytest.mark.parametrize("length", [0, 1, 2])
def test_a_run_that_hardly_began_is_no_error(length: int) -> None:
    check(page(read_report_data(a_run()[:length]), ReportSources(location="x")))


def test_events_without_the_usual_fields_are_no_error() -> None:
    events: list[Event] = [
        {"event": "start", "step": 0},
        {"event": "step", "step": 1, "tokens": 5, "loss": 1.0, "epoch": 0, "digest": ""},
        {"event": "evaluation", "step": 1, "set": "web", "loss": math.nan},
        {"event": "of a later version", "step": 1},
        {"event": "stop", "step": 1},
    ]
    check(page(read_report_data(events), ReportSources(location="x")))
    check(page(read_report_data(events[1:]), ReportSources(location="x")))


def test_a_long_run_has_a_page_that_is_not_long() -> None:
    events = [start_event(step=0, time=0.0)]
    events += [step(n, 2.0 * n, loss=5.0 + math.sin(n)) for n in range(1, 20_001)]
    html = page(read_report_data(events), ReportSources(location="x"))
    check(html)
    assert len(html) < 1_000_000
    assert "Loss from step 4,001" in html
    assert html.count('class="mark"') < 31 * 14


def test_smoothing_follows_a_change_and_ignores_what_is_not_finite() -> None:
    points = [(float(n), 1.0 if n < 500 else 3.0) for n in range(1000)]
    points[10] = (10.0, math.nan)
    smoothed = list(smooth(points, len(points)))
    assert smoothed[0][1] == pytest.approx(1.0)
    assert math.isnan(smoothed[10][1])
    assert smoothed[499][1] == pytest.approx(1.0)
    assert smoothed[600][1] == pytest.approx(3.0, abs=0.01)


def test_a_directory_without_metrics_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"metrics.jsonl: there is no such file. Give the directory"
    ):
        write_report(open_store(tmp_path))


class Far:
    """A store that is not on this machine: only its methods may be used."""

    is_local = False

    def __init__(self, near: Store) -> None:
        self.near = near

    def __getattr__(self, verb: str) -> Any:
        assert verb in ("head", "read", "write", "url", "download"), verb
        return getattr(self.near, verb)


def test_metrics_that_are_not_on_this_machine_are_fetched_first(tmp_path: Path) -> None:
    far: Any = Far(open_store(write_run(tmp_path, a_run())))
    write_report(far)
    assert "at step 20: max_steps" in check((tmp_path / "report.html").read_text())
