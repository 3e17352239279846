"""The command `convert-mds`. In: arguments. Out: an exit code. Imports what does the work when it is asked for."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from stream_pretrain.errors import ConfigError, StreamPretrainError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command: 0 done, 1 error, 2 bad usage."""
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except StreamPretrainError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return error.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="convert-mds", description="Turn raw text into MDS shards for pretraining."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    build = commands.add_parser("build", help="convert text to a dataset directory")
    build.add_argument(
        "--input",
        action="append",
        required=True,
        help="file, directory or glob; NAME=PATH names it",
    )
    build.add_argument("--out", required=True)
    build.add_argument(
        "--tokenizer", required=True, help="`byte`, a tokenizer.json or a directory that holds one"
    )
    build.add_argument("--seq_len", type=int, required=True)
    for name in (
        "text_key",
        "id_key",
        "format",
        "eos",
        "bos",
        "validation",
        "special_in_text",
        "on_bad_record",
    ):
        build.add_argument(f"--{name}")
    for name in ("compression", "engine"):
        build.add_argument(f"--{name}")
    for name in ("min_chars", "max_chars", "part_size", "shard_size", "workers"):
        build.add_argument(f"--{name}", type=int)
    build.add_argument("--overwrite", action="store_true", default=None)
    build.set_defaults(run=_build)
    tokenizer = commands.add_parser("tokenizer", help="train a byte-level BPE tokenizer")
    tokenizer.add_argument("--input", action="append", required=True)
    tokenizer.add_argument("--vocab_size", type=int, required=True)
    tokenizer.add_argument("--text_key", default="text")
    tokenizer.add_argument("--out", required=True)
    tokenizer.set_defaults(run=_tokenizer)
    return parser


def _build(arguments: argparse.Namespace) -> int:
    from pydantic import ValidationError

    from convert.build import build
    from convert.config import BuildConfig

    given: dict[str, Any] = {
        k: v for k, v in vars(arguments).items() if v is not None and k != "run"
    }
    try:
        config = BuildConfig(**given)
    except ValidationError as error:
        raise ConfigError(str(error)) from error
    card = build(config)
    for name, split in card.splits.items():
        print(
            f"{name}: {split.documents:,} documents, {split.tokens:,} tokens, {split.samples:,} samples"
        )
    print(f"{config.out}: content hash {card.content_hash}")
    return 0


def _tokenizer(arguments: argparse.Namespace) -> int:
    from convert.train_tokenizer import train_tokenizer

    size = train_tokenizer(
        arguments.input, arguments.vocab_size, arguments.out, text_key=arguments.text_key
    )
    print(f"{arguments.out}: {size:,} tokens")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
