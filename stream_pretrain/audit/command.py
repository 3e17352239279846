"""The commands that look at runs. In: parsed arguments. Out: exit codes. The modules beside it do the work."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def demo(arguments: Any) -> int:
    """`stream-pretrain demo`: 0 where both runs agree, 1 where they differ."""
    from rich.console import Console

    from stream_pretrain.audit import demo as play

    say = Console(stderr=True)
    result = play.demo(Path(arguments.out), say)
    play.show(result, say)
    if arguments.as_json:
        found = {
            "same": not result.differences,
            "differences": list(result.differences),
            "steps": result.whole.step,
            "killed_after": result.killed_after,
            "digest": [result.whole.digest, result.interrupted.digest],
            "final_loss": [result.whole.final_loss, result.interrupted.final_loss],
            "weights": [result.whole.weights, result.interrupted.weights],
            "chart": str(result.chart),
            "seconds": result.seconds,
        }
        print_json(found)
    return 1 if result.differences else 0


def report(arguments: Any) -> int:
    """`stream-pretrain report RUN`: writes the page and prints where it is."""
    from stream_pretrain.audit.report import write_report
    from stream_pretrain.storage.store import open_store

    run = open_store(arguments.run, arguments.storage)
    print(write_report(run, Path(arguments.out) if arguments.out else None))
    return 0


def print_json(value: Any) -> None:
    """One indented JSON document on stdout."""
    json.dump(value, sys.stdout, indent=2)
    sys.stdout.write("\n")
