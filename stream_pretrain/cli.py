"""`stream-pretrain`: arguments -> one command. Out: an exit code (0, 1, 2, 75). Imports a command
only to run it.

`--help`, `--version` and a bad configuration are answered without torch. Does no work itself.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from stream_pretrain.errors import ConfigError, StreamPretrainError

if TYPE_CHECKING:
    from stream_pretrain.config.types import Section

PROGRAM = "stream-pretrain"
EXIT_INTERRUPTED = 128 + signal.SIGINT


@dataclass(frozen=True, kw_only=True)
class Command:
    """A subcommand: what it does in a line, the function behind it (`module:function`), its flags.

    `arguments` adds flags to a parser; None: the command takes a configuration, and `options` names
    the class of its own flags in `config.options`.
    """

    summary: str
    target: str
    arguments: Callable[[argparse.ArgumentParser], None] | None = None
    options: str = "NoOptions"


class Parser(argparse.ArgumentParser):
    """Argument parser whose complaints are `ConfigError`s."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of leaving."""
        raise ConfigError(f"{self.prog}: {message}. See: {self.prog} --help")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: this process's) and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _dispatch(words)
        sys.stdout.flush()
        return code
    except StreamPretrainError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    finally:
        _end_workers()


def _dispatch(words: list[str]) -> int:
    if not words:
        print(_usage(), end="", file=sys.stderr)
        return 2
    name, rest = words[0], words[1:]
    if name in ("-h", "--help", "help"):
        print(_usage(), end="")
        return 0
    if name == "--version":
        from importlib.metadata import version

        print(f"{PROGRAM} {version(PROGRAM)}")
        return 0
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"{PROGRAM}: no such command: {name}{hint} See: {PROGRAM} --help")
    command = COMMANDS[name]
    if command.arguments is None:
        return _run_with_config(name, command, rest)
    return _run_with_arguments(name, command, rest)


def _run_with_config(name: str, command: Command, words: list[str]) -> int:
    from stream_pretrain.config import options
    from stream_pretrain.config.load_config import load_config
    from stream_pretrain.config.sections import Config

    own: type[Section] = getattr(options, command.options)
    loaded = load_config(words, model=Config, program=f"{PROGRAM} {name}", options=own)
    if loaded.print_config:
        print(loaded.to_yaml(), end="")
        return 0
    return _function(command)(loaded)


def _run_with_arguments(name: str, command: Command, words: list[str]) -> int:
    parser = Parser(prog=f"{PROGRAM} {name}", description=command.summary, allow_abbrev=False)
    if command.arguments is not None:
        command.arguments(parser)
    if name != "demo":
        parser.epilog = "Buckets: the storage section as flags, such as --storage.region."
    arguments, rest = parser.parse_known_args([_underscored(word) for word in words])
    if name == "demo" and rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if name != "demo":
        from stream_pretrain.config.load_config import load_config
        from stream_pretrain.config.options import StorageOptions

        access = load_config(rest, model=StorageOptions, program=f"{PROGRAM} {name}")
        arguments.storage = access.config.storage
    return _function(command)(arguments)


def _function(command: Command) -> Callable[[object], int]:
    module, _, name = command.target.partition(":")
    function: Callable[[object], int] = getattr(importlib.import_module(module), name)
    return function


def _underscored(word: str) -> str:
    """`--max-tokens=1` -> `--max_tokens=1`: both spellings are one flag."""
    if not word.startswith("--"):
        return word
    name, equals, value = word[2:].partition("=")
    return f"--{name.replace('-', '_')}{equals}{value}"


def _usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {command.summary}\n" for name, command in COMMANDS.items()]
    return (
        f"usage: {PROGRAM} COMMAND ...\n\n"
        "Pretrain LitGPT models from streamed MDS shards, with a resume that is exact.\n\n"
        f"{''.join(lines)}\n"
        f"{PROGRAM} COMMAND --help describes a command; {PROGRAM} --version shows the version.\n"
    )


def _end_workers() -> None:
    """Kill DataLoader workers that an exception left behind: they ignore signals, and leaving joins
    them without a time limit."""
    if "multiprocessing" in sys.modules:
        from stream_pretrain.runtime.stop import kill_children

        kill_children()


def _whole(text: str) -> int:
    from stream_pretrain.units import parse_count

    try:
        return parse_count(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="run directory: a path or a bucket URL")


def _step(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--step", type=_whole, metavar="N", help="checkpoint of this step (default: the newest)"
    )


def _json(parser: argparse.ArgumentParser) -> None:
    help_text = "print JSON for a script"
    parser.add_argument("--json", action="store_true", dest="as_json", help=help_text)


def _export(parser: argparse.ArgumentParser) -> None:
    _run(parser)
    parser.add_argument("--format", choices=("litgpt", "huggingface"), required=True)
    parser.add_argument("--out", metavar="DIR", required=True, help="new directory to write")
    _step(parser)
    _json(parser)


def _generate(parser: argparse.ArgumentParser) -> None:
    _run(parser)
    parser.add_argument("--prompt", metavar="TEXT", default="", help="text to go on from")
    parser.add_argument("--max_tokens", type=_whole, default=100, metavar="N", help="new tokens")
    parser.add_argument("--temperature", type=float, default=0.8, help="0: always the likeliest")
    parser.add_argument("--top_k", type=_whole, default=50, metavar="K", help="0: all tokens")
    parser.add_argument("--seed", type=_whole, default=1234, metavar="N")
    _step(parser)
    _json(parser)


def _trace(parser: argparse.ArgumentParser) -> None:
    _run(parser)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--step", type=_whole, metavar="N", help="what data step N trained on")
    what.add_argument("--document", metavar="ID", help="the data steps that held a document")
    parser.add_argument("--stream", metavar="NAME", help="only this stream")
    _json(parser)


def _verify(parser: argparse.ArgumentParser) -> None:
    _run(parser)
    parser.add_argument("--fast", action="store_true", help="sizes only, no hashes")
    _step(parser)
    _json(parser)


def _replay(parser: argparse.ArgumentParser) -> None:
    _run(parser)
    parser.add_argument(
        "--step", type=_whole, metavar="N", help="last data step (default: as far as it came)"
    )
    _json(parser)


def _report(parser: argparse.ArgumentParser) -> None:
    _run(parser)
    parser.add_argument(
        "--out", metavar="FILE", help="where to write it (default: RUN/report.html)"
    )


def _demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", metavar="DIR", default="stream-pretrain-demo", help="directory for all it makes"
    )
    _json(parser)


_AUDIT = "stream_pretrain.audit.audit_commands"

COMMANDS: Mapping[str, Command] = {
    "fit": Command(summary="train, or go on training", target="stream_pretrain.train.fit:fit"),
    "plan": Command(
        summary="show every derived number and check data, model and devices; train nothing",
        target="stream_pretrain.train.fit:show_plan",
        options="PlanOptions",
    ),
    "trace": Command(
        summary="the documents of a step, or the steps of a document",
        target=f"{_AUDIT}:trace",
        arguments=_trace,
    ),
    "verify": Command(
        summary="check the checkpoints, metrics and data of a run",
        target=f"{_AUDIT}:verify",
        arguments=_verify,
    ),
    "selftest": Command(
        summary="kill and resume a configuration on this machine, and compare",
        target=f"{_AUDIT}:selftest",
        options="SelftestOptions",
    ),
    "export": Command(
        summary="write a checkpoint as a LitGPT or Hugging Face directory",
        target="stream_pretrain.export.export_commands:export",
        arguments=_export,
    ),
    "generate": Command(
        summary="text from a checkpoint, for a quick look",
        target="stream_pretrain.export.export_commands:generate",
        arguments=_generate,
    ),
    "report": Command(
        summary="one HTML page about a run",
        target=f"{_AUDIT}:report",
        arguments=_report,
    ),
    "replay": Command(
        summary="read a run's data again and compare the digest",
        target=f"{_AUDIT}:replay",
        arguments=_replay,
    ),
    "demo": Command(
        summary="corpus, shards, training, a real kill and the comparison, in three minutes",
        target=f"{_AUDIT}:demo",
        arguments=_demo,
    ),
}

if __name__ == "__main__":
    sys.exit(main())
