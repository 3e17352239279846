"""The command `convert-mds`. In: arguments. Out: an exit code (0, 1, 2, 75).

Imports what does the work only when it is asked for. Does no work itself.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from stream_pretrain.errors import ConfigError, StreamPretrainError

if TYPE_CHECKING:
    from stream_pretrain.config.types import Section
    from stream_pretrain.schema import Card
    from stream_pretrain.storage.store import Store

OptionsT = TypeVar("OptionsT", bound="Section")
PROGRAM = "convert-mds"
STOPPED = 75
USAGE = f"""\
usage: {PROGRAM} COMMAND [FLAGS]

Turn raw text into MDS shards for pretraining.

  build      convert text to a dataset directory, or go on with a stopped conversion
  verify     check every byte of a dataset: {PROGRAM} verify DATASET [--fast]
  inspect    show what a dataset holds: {PROGRAM} inspect DATASET
  tokenizer  train a byte-level BPE tokenizer

{PROGRAM} COMMAND --help shows a command's flags.
"""


class Stopped(BaseException):
    """A signal asked for an end."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command: 0 done, 1 error, 2 bad usage, 75 stopped: the same command goes on.

    Without `argv` this is the process's entry: it does not return.
    """
    if argv is None:
        _leave(_exit_code(sys.argv[1:]))
    return _run(list(argv))


def _run(words: list[str]) -> int:
    try:
        return _dispatch(words)
    except StreamPretrainError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return error.exit_code
    except (KeyboardInterrupt, Stopped):
        print("Stopped. What is finished is kept: run the same command again.", file=sys.stderr)
        return STOPPED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        line = _one_line(error)
        if line is None:
            raise
        print(line, file=sys.stderr)
        return 1


def _one_line(error: Exception) -> str | None:
    """A fault of the machine or of a file in one line; None for a fault of this program."""
    arrow = sys.modules.get("pyarrow")
    if isinstance(error, MemoryError):
        found = f"not enough memory ({error})" if str(error) else "not enough memory"
        return f"{type(error).__name__}: {found}. Give fewer --workers or a smaller --part_size."
    if isinstance(error, OSError):
        name = error.filename
        place = f"{os.fsdecode(name)}: " if isinstance(name, str | bytes) else ""
        reason = " ".join((error.strerror or str(error)).split())
        return f"StorageError: {place}{reason}. Check the path, its permissions and the free space."
    if arrow is not None and isinstance(error, arrow.ArrowException):
        return f"DataError: {' '.join(str(error).split())}. Fetch or convert the file again."
    return None


def _exit_code(words: list[str]) -> int:
    """What `_run` returns, or what `SystemExit` or a fault of this program comes to."""
    try:
        return _run(words)
    except SystemExit as done:
        if done.code is None or isinstance(done.code, int):
            return done.code or 0
        print(done.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1


def _leave(code: int) -> NoReturn:
    """End without the interpreter's own ending, in which threads of pyarrow and of the bucket
    clients abort the process now and then: `verify` of a whole dataset ended with 134.
    """
    with contextlib.suppress(Exception):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):  # a broken pipe, or closed: no reader is left
            code = code or 1
    os._exit(code)


def _dispatch(words: list[str]) -> int:
    if not words:
        print(USAGE, end="", file=sys.stderr)
        return 2
    name, rest = words[0], words[1:]
    if name in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0
    if name == "--version":
        from importlib.metadata import version

        print(f"{PROGRAM} {version('stream-pretrain')}")
        return 0
    if name not in COMMANDS:
        known = ", ".join(COMMANDS)
        raise ConfigError(f"{PROGRAM} {name}: no such command. Choose one of {known}.")
    return COMMANDS[name](rest)


def _build(words: list[str]) -> int:
    from convert.config import BuildConfig, BuildOptions
    from stream_pretrain.config.load_config import load_config

    loaded = load_config(words, model=BuildConfig, program=f"{PROGRAM} build", options=BuildOptions)
    options = loaded.options
    assert isinstance(options, BuildOptions)
    if loaded.print_config:
        print(loaded.to_yaml(), end="")
        return 0
    from convert.jobs.engines.start_engine import warm_up

    warm_up(loaded.config)
    from convert.build import build

    signal.signal(signal.SIGTERM, _stop)
    built = build(loaded.config, progress="off" if options.quiet else "auto")
    if options.json_output:
        print(json.dumps({"out": loaded.config.out, **_summary(built.card)}))
    else:
        _print_card(built.card, loaded.config.out, was_there=built.was_there)
    return 0


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    del frame
    raise Stopped(signal.Signals(number).name)


def _summary(card: Card) -> dict[str, Any]:
    splits = {name: asdict(split) for name, split in card.splits.items()}
    return {"content_hash": card.content_hash, "splits": splits, "notes": dict(card.notes)}


def _print_card(card: Card, out: str, *, was_there: bool) -> None:
    if was_there:
        print(f"{out}: already converted with these settings from these inputs; nothing to do.")
    for name, split in card.splits.items():
        print(
            f"{name}: {split.documents:,} documents, {split.tokens:,} tokens, {split.samples:,} "
            f"samples ({split.dropped_tokens:,} tokens filled no sample)"
        )
    left_out = {key: count for key, count in card.notes.get("tallies", {}).items() if count}
    if left_out:
        print("counted: " + ", ".join(f"{count:,} {key}" for key, count in left_out.items()))
    print(f"{out}: content hash {card.content_hash}")


def _verify(words: list[str]) -> int:
    from convert.config import VerifyOptions

    store, options = _dataset(words, "verify", VerifyOptions)
    from convert.checks.verify_dataset import verify

    report = verify(store, fast=options.fast)
    if options.json_output:
        print(json.dumps(report.to_plain()))
    else:
        print("\n".join(report.lines()))
    return 0 if report.is_whole else 1


def _inspect(words: list[str]) -> int:
    from convert.config import InspectOptions

    store, options = _dataset(words, "inspect", InspectOptions)
    from convert.checks.inspect_dataset import inspect

    view = inspect(store, split=options.split, samples=options.samples)
    print(json.dumps(view.to_plain()) if options.json_output else "\n".join(view.lines()))
    return 0


def _dataset(words: list[str], command: str, options: type[OptionsT]) -> tuple[Store, OptionsT]:
    """The dataset that a command reads, and the command's options."""
    from convert.config import DatasetConfig
    from stream_pretrain.config.load_config import load_config
    from stream_pretrain.storage.store import open_store

    location, rest = _location(words, command)
    program = f"{PROGRAM} {command} DATASET"
    loaded = load_config(rest, model=DatasetConfig, program=program, options=options)
    assert isinstance(loaded.options, options)
    return open_store(location, loaded.config.storage), loaded.options


def _location(words: list[str], command: str) -> tuple[str, list[str]]:
    """The dataset, which stands first, and the flags."""
    if words and words[0] not in ("-h", "--help") and not words[0].startswith("--"):
        return words[0], words[1:]
    if any(word in ("-h", "--help") for word in words):
        return "", words
    raise ConfigError(f"{PROGRAM} {command}: name a dataset first: {PROGRAM} {command} DATASET")


def _tokenizer(words: list[str]) -> int:
    from convert.config import BuildOptions, TokenizerConfig
    from stream_pretrain.config.load_config import load_config

    loaded = load_config(
        words, model=TokenizerConfig, program=f"{PROGRAM} tokenizer", options=BuildOptions
    )
    options = loaded.options
    assert isinstance(options, BuildOptions)
    if loaded.print_config:
        print(loaded.to_yaml(), end="")
        return 0
    from convert.encoding.train_tokenizer import train_tokenizer

    size = train_tokenizer(loaded.config, progress="off" if options.quiet else "auto")
    if size < loaded.config.vocab_size:
        print(
            f"warning: --vocab_size {loaded.config.vocab_size} was not reached: the text has "
            f"merges for {size} tokens only. Give more text, or train with that number.",
            file=sys.stderr,
        )
    if options.json_output:
        print(json.dumps({"out": loaded.config.out, "vocab_size": size}))
    else:
        print(f"{loaded.config.out}: {size:,} tokens")
    return 0


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "build": _build,
    "verify": _verify,
    "inspect": _inspect,
    "tokenizer": _tokenizer,
}

if __name__ == "__main__":
    main()
