"""How `convert-mds` ends: exit codes of the process, and one line for what the machine refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from corpora import build, command, process, write_jsonl

from convert import cli


def entry(body: str) -> subprocess.CompletedProcess[str]:
    """The process's entry, with a command `verify` that runs `body`."""
    script = (
        "import sys, threading, time\nfrom convert import cli\n"
        f"def run(words):\n    {body}\n"
        "cli.COMMANDS['verify'] = run\nsys.argv = ['convert-mds', 'verify']\ncli.main()\n"
    )
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )


def test_threads_that_are_still_there_do_not_decide_how_the_process_ends() -> None:
    body = "threading.Thread(target=time.sleep, args=(500,)).start(); print('done'); return 0"
    ended = entry(body)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")


def test_what_was_registered_for_the_end_is_run() -> None:
    ended = entry("import atexit; atexit.register(print, 'last'); return 3")
    assert (ended.returncode, ended.stdout) == (3, "last\n")


@pytest.mark.parametrize(
    ("body", "code", "expected"),
    [
        ("sys.exit(5)", 5, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit('words')", 1, "words\n"),
        ("raise KeyboardInterrupt", 75, "Stopped. What is finished is kept"),
        ("raise ZeroDivisionError", 1, "Traceback"),
    ],
)
def test_every_way_out_has_its_code(body: str, code: int, expected: str) -> None:
    ended = entry(body)
    assert ended.returncode == code
    assert ended.stderr.startswith(expected)


def test_every_command_ends_with_its_code_in_a_process(tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "out"
    assert build(capsys, "--input", write_jsonl(tmp_path / "c.jsonl"), "--out", out).code == 0
    assert process("verify", out).returncode == 0
    assert "content hash" in process("inspect", out).stdout
    assert process("build", "--help").returncode == 0
    assert process("verify", tmp_path / "none").returncode == 1
    assert process("nonsense").returncode == 2


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(30, "Read-only file system", "/d/x"), "StorageError: /d/x: Read-only file system"),
        (OSError("Corrupt\n  data"), "StorageError: Corrupt data. Check the path"),
        (MemoryError(), "MemoryError: not enough memory. Give fewer --workers"),
        (MemoryError("1 TiB"), "MemoryError: not enough memory (1 TiB)"),
        (pa.ArrowInvalid("no\nfooter"), "DataError: no footer. Fetch or convert"),
    ],
)
def test_faults_of_the_machine_are_one_line(
    error: Exception, expected: str, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: list[str]) -> int:
        raise error

    monkeypatch.setitem(cli.COMMANDS, "verify", fail)
    run = command(capsys, "verify")
    assert run.code == 1
    assert run.err.startswith(expected)
    assert run.err.count("\n") == 1


def test_a_fault_of_the_program_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: list[str]) -> int:
        raise ZeroDivisionError

    monkeypatch.setitem(cli.COMMANDS, "verify", fail)
    with pytest.raises(ZeroDivisionError):
        cli.main(["verify"])
