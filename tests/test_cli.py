"""The command line of `stream-pretrain`: what it prints, and what it returns."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from importlib.metadata import version
from types import ModuleType
from typing import Any

import pytest

from stream_pretrain.cli import COMMANDS, EXIT_INTERRUPTED, main
from stream_pretrain.config.load_config import LoadedConfig
from stream_pretrain.errors import DataError

SOUND = [
    "--run.dir", "r", "--model.name", "pythia-14m", "--data.train", '[{"local": "/d"}]',
    "--batch.global_size", "8", "--stop.max_steps", "5", "--optimizer.lr", "1e-3",
]  # fmt: skip

Shell = Callable[..., tuple[int, str, str]]


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    def run(*argv: str) -> tuple[int, str, str]:
        code = main(argv)
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Puts a recorder in the place of every command's function; the list has what it received."""
    received: list[Any] = []

    def record(arguments: Any) -> int:
        received.append(arguments)
        return 75

    targets = [command.target.partition(":") for command in COMMANDS.values()]
    stand_ins = {module: ModuleType(module) for module, _, _ in targets}
    for module, _, name in targets:
        setattr(stand_ins[module], name, record)
        monkeypatch.setitem(sys.modules, module, stand_ins[module])
    return received


def test_no_command_prints_the_usage_and_is_bad_usage(shell: Shell) -> None:
    code, out, err = shell()
    assert (code, out) == (2, "")
    assert "usage: stream-pretrain COMMAND" in err


@pytest.mark.parametrize("word", ["--help", "-h", "help"])
def test_help_names_every_command(shell: Shell, word: str) -> None:
    code, out, _ = shell(word)
    assert code == 0
    for name, command in COMMANDS.items():
        assert f"  {name} " in out
        assert command.summary in out


def test_the_version_is_the_packages(shell: Shell) -> None:
    assert shell("--version") == (0, f"stream-pretrain {version('stream-pretrain')}\n", "")


def test_an_unknown_command_is_bad_usage_with_the_nearest_name(shell: Shell) -> None:
    code, _, err = shell("fti")
    assert code == 2
    assert "no such command: fti; did you mean fit?" in err


def test_a_bad_configuration_is_bad_usage_without_a_traceback(shell: Shell) -> None:
    code, out, err = shell("fit", "--lr", "3")
    assert (code, out) == (2, "")
    assert err.startswith("ConfigError: ")
    assert "did you mean --optimizer.lr?" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("name", [n for n, c in COMMANDS.items() if c.arguments is None])
def test_a_configuration_is_printed_or_handed_to_the_command(
    shell: Shell, called: list[Any], name: str
) -> None:
    code, out, _ = shell(name, *SOUND, "--print_config")
    assert code == 0
    assert "global_size: 8" in out
    assert called == []
    assert shell(name, *SOUND)[0] == 75
    assert isinstance(called[0], LoadedConfig)
    assert called[0].config.batch.global_size == 8


@pytest.mark.parametrize("name", ["plan", "selftest"])
def test_a_command_with_a_configuration_has_flags_of_its_own(
    shell: Shell, called: list[Any], name: str
) -> None:
    assert shell(name, *SOUND, "--json")[0] == 75
    assert called[0].options.as_json is True


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["trace", "r", "--step", "1e3"], {"run": "r", "step": 1000, "document": None}),
        (["trace", "r", "--document", "d1", "--json"], {"document": "d1", "as_json": True}),
        (["verify", "r", "--fast"], {"fast": True, "step": None}),
        (["export", "r", "--format", "litgpt", "--out", "o"], {"format": "litgpt", "out": "o"}),
        (["generate", "r", "--prompt", "To be", "--max-tokens=5"], {"max_tokens": 5, "top_k": 50}),
        (["report", "r", "--out", "x.html"], {"out": "x.html"}),
        (["replay", "r", "--step", "7"], {"step": 7}),
        (["demo", "--out", "d"], {"out": "d", "as_json": False}),
    ],
)
def test_a_command_on_a_run_receives_its_arguments(
    shell: Shell, called: list[Any], argv: list[str], expected: dict[str, Any]
) -> None:
    assert shell(*argv)[0] == 75
    assert isinstance(called[0], Namespace)
    assert {key: getattr(called[0], key) for key in expected} == expected


def test_a_run_in_a_bucket_is_reached_with_storage_flags(shell: Shell, called: list[Any]) -> None:
    assert shell("report", "s3://b/r", "--storage.region", "eu", "--storage.anonymous")[0] == 75
    assert called[0].storage.region == "eu"
    assert called[0].storage.anonymous is True


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["trace", "r"], "one of the arguments --step --document is required"),
        (["trace", "r", "--step", "soon"], "must be a whole number"),
        (["export", "r", "--format", "onnx", "--out", "o"], "invalid choice: 'onnx'"),
        (["report"], "the following arguments are required: RUN"),
        (["report", "r", "--storage.regoin", "x"], "did you mean --storage.region?"),
        (["demo", "--fast"], "unrecognized arguments: --fast"),
    ],
)
def test_bad_arguments_are_bad_usage(shell: Shell, argv: list[str], words: str) -> None:
    code, out, err = shell(*argv)
    assert (code, out) == (2, "")
    assert words in err


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_explains_itself(capsys: pytest.CaptureFixture[str], name: str) -> None:
    with pytest.raises(SystemExit) as left:
        main([name, "--help"])
    assert left.value.code == 0
    assert f"usage: stream-pretrain {name}" in capsys.readouterr().out


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    module = ModuleType("stream_pretrain.audit.audit_commands")

    def fail(_: Any) -> int:
        raise error

    module.report = fail  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "stream_pretrain.audit.audit_commands", module)


def test_an_error_that_a_person_can_act_on_is_one_line_and_1(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, DataError("d: empty. Convert again."))
    assert shell("report", "r") == (1, "", "DataError: d: empty. Convert again.\n")


def test_an_interrupt_is_reported_as_a_shell_does(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, KeyboardInterrupt())
    assert shell("report", "r") == (EXIT_INTERRUPTED, "", "interrupted\n")


def test_an_error_of_our_own_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, ZeroDivisionError("bug"))
    with pytest.raises(ZeroDivisionError, match="bug"):
        main(["report", "r"])


@pytest.mark.parametrize("argv", [["--help"], ["fit", "--help"]])
def test_a_reader_that_has_enough_is_no_error_of_ours(argv: list[str]) -> None:
    program = f"import sys; from stream_pretrain.cli import main; sys.exit(main({argv!r}))"
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-c", program], stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


def test_leaving_by_an_error_kills_the_workers_that_ignore_signals(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    worker.start()
    failing(monkeypatch, DataError("x"))
    assert shell("report", "r")[0] == 1
    worker.join(timeout=10)
    assert worker.exitcode is not None
