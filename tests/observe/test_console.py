"""Progress is a live line on a terminal, plain lines elsewhere, and never on stdout."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from typing import Any

import pytest

from stream_pretrain.observe.console import (
    Progress,
    StatusLine,
    resolve_mode,
    training_line,
)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def plain_progress(**options: Any) -> tuple[Progress, io.StringIO, Clock]:
    stream, clock = io.StringIO(), Clock()
    return Progress("encode", mode="plain", stream=stream, clock=clock, **options), stream, clock


def test_plain_progress_prints_now_and_then_and_at_the_end() -> None:
    bar, stream, clock = plain_progress(total=100, every_seconds=10)
    with bar:
        for _ in range(100):
            clock.now += 1
            bar.advance(1, tokens=50)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 11
    assert lines[1] == "encode  11/100 documents (11 %)  550 tokens  50 tokens/s  0:01:29 left"
    assert lines[-1] == "encode  100/100 documents (100 %)  5K tokens  50 tokens/s  in 0:01:40"


def test_a_bar_may_count_bytes_and_have_no_total() -> None:
    bar, stream, clock = plain_progress(unit="bytes")
    clock.now = 2
    bar.update(64 << 20, documents=12_345)
    bar.close()
    bar.close()
    assert "64 MiB  12.3K documents  2s so far" in stream.getvalue()


def test_the_rate_may_be_of_the_unit_itself() -> None:
    bar, _, clock = plain_progress(total=10, unit="rows", rate_of="rows")
    clock.now = 2
    bar.update(4)
    assert bar.text() == "encode  4/10 rows (40 %)  2 rows/s  3s left"


def test_work_done_before_a_restart_does_not_count_as_speed() -> None:
    bar, _, clock = plain_progress(total=100)
    bar.start_from(50, tokens=1000)
    clock.now = 10
    bar.advance(10, tokens=200)
    assert bar.text() == "encode  60/100 documents (60 %)  1.2K tokens  20 tokens/s  40s left"


def test_nothing_is_printed_when_it_is_off(capfd: pytest.CaptureFixture[str]) -> None:
    with Progress("x", total=1, mode="off") as bar:
        bar.advance(1)
        bar.print_line("hello")
    assert capfd.readouterr() == ("", "")


def test_progress_goes_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    with Progress("x", total=1) as bar:
        bar.print_line("hello")
        bar.advance(1)
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("hello\nx  1/1 documents")


def test_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    assert resolve_mode("auto", Terminal()) == "terminal"
    assert resolve_mode("auto", io.StringIO()) == "plain"
    assert resolve_mode("off", Terminal()) == "off"
    monkeypatch.setenv("TERM", "dumb")
    assert resolve_mode("auto", Terminal()) == "plain"


ON_A_TERMINAL = """
from stream_pretrain.observe.console import Progress
with Progress("encode", total=3) as bar:
    bar.print_line("first [red] line")
    for _ in range(3):
        bar.advance(1, tokens=1_000_000)
    print("within")
    bar.print_line("second line")
print("after")
"""


def test_a_terminal_gets_a_line_that_is_rewritten() -> None:
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    done = subprocess.run(
        [sys.executable, "-c", ON_A_TERMINAL],
        stdout=subprocess.PIPE,
        stderr=follower,
        env=environment,
        check=True,
    )
    os.close(follower)
    shown = b""
    try:
        while block := os.read(leader, 1 << 16):
            shown += block
    except OSError:  # the other end is closed
        pass
    os.close(leader)
    assert done.stdout == b"within\nafter\n"
    assert b"\x1b[2K" in shown
    assert b"first [red] line" in shown
    assert b"3/3 documents (100 %)" in shown
    assert b"\x1b[?25h" in shown[shown.rindex(b"\x1b[?25l") :], "the cursor is hidden"


def test_the_training_line_shows_all_that_is_known() -> None:
    event = {
        "step": 1200,
        "loss": 3.21444,
        "lr": 3e-4,
        "grad_norm": 0.8123,
        "tokens_per_second": 1_234_567.0,
        "data_wait": 0.003,
        "mfu": 0.412,
    }
    status = {"save_share": 0.001, "seconds_left": 3725.0, "skipped": 2}
    assert training_line(event, total_steps=10_000, status=status) == (
        "step 1,200/10,000  loss 3.2144  lr 3.00e-04  norm 0.812  1.23M tok/s  1:02:05 left"
        "  mfu 41.2 %  data 0.3 %  save 0.1 %  skipped 2"
    )
    bare = {**event, "mfu": None, "loss": None}
    assert training_line(bare, total_steps=None, status={}) == (
        "step 1,200  loss nan  lr 3.00e-04  norm 0.812  1.23M tok/s  data 0.3 %"
    )


def test_a_forced_line_is_not_printed_twice() -> None:
    stream = io.StringIO()
    line = StatusLine(mode="plain", stream=stream, clock=Clock())
    for _ in range(3):
        line.show(lambda: "same", done=1, total=2, force=True)
    assert stream.getvalue() == "same\n"
