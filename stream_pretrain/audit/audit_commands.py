"""Run the commands that inspect runs, and print their results.

Each function takes parsed arguments and returns an exit code; the other modules of this folder do
the work.
"""

from __future__ import annotations

import json
import sys
import tempfile
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from stream_pretrain.storage.store import Store, open_store


def demo(arguments: Any) -> int:
    """Run `stream-pretrain demo`. Return 0 if both runs agree, 1 if they differ."""
    from stream_pretrain.audit.demo import print_result, run_demo, summary

    console = Console(stderr=True)
    result = run_demo(Path(arguments.out), console)
    print_result(result, console)
    if arguments.as_json:
        _print_json(summary(result))
    return 1 if result.differences else 0


def selftest(loaded: Any) -> int:
    """Run `stream-pretrain selftest`. Return 0 if both runs agree, 1 if they differ."""
    from stream_pretrain.audit.selftest import run_selftest

    options = loaded.options
    console = Console(stderr=True)
    directory = (
        tempfile.TemporaryDirectory(prefix="selftest-")
        if options.out is None
        else nullcontext(options.out)
    )
    with directory as out:
        result = run_selftest(
            loaded.to_yaml(),
            Path(out),
            steps=options.steps,
            kills=options.kills,
            seed=loaded.config.run.seed,
            report=console.print,
        )
    if options.as_json:
        _print_json(
            {
                "same": not result.differences,
                "differences": list(result.differences),
                "killed_after": list(result.killed_after),
                "digest": [result.uninterrupted.digest, result.interrupted.digest],
                "weights": [result.uninterrupted.weights, result.interrupted.weights],
            }
        )
    for line in result.differences:
        console.print(f"differs: {line}", markup=False)
    if not result.differences:
        kills = ", ".join(map(str, result.killed_after))
        digest = result.uninterrupted.digest
        console.print(f"same, bit for bit: digest {digest}, killed after steps {kills}")
    return 1 if result.differences else 0


def trace(arguments: Any) -> int:
    """Run `stream-pretrain trace RUN --step N | --document ID`."""
    from stream_pretrain.audit.run_history import read_run_history
    from stream_pretrain.audit.trace import trace_document, trace_step

    history = read_run_history(_run(arguments), arguments.storage)
    if arguments.document is not None:
        occurrences = trace_document(history, arguments.document, arguments.stream)
        if arguments.as_json:
            _print_json([asdict(occurrence) for occurrence in occurrences])
        else:
            _print_table(f"document {arguments.document}", [asdict(o) for o in occurrences])
        return 0
    samples = [
        sample
        for sample in trace_step(history, arguments.step)
        if arguments.stream in (None, sample.stream)
    ]
    if arguments.as_json:
        _print_json([asdict(sample) for sample in samples])
        return 0
    rows = [
        {
            "stream": sample.stream,
            "sample": sample.sample,
            "shard": f"{sample.shard}:{sample.row}",
            "document": span.document if span else "",
            "source": f"{span.source}:{span.position}" if span else "",
            "ids": f"{span.begin}..{span.end - 1}" if span else "",
        }
        for sample in samples
        for span in (sample.pieces or (None,))
    ]
    _print_table(f"data step {arguments.step}", rows)
    return 0


def verify(arguments: Any) -> int:
    """Run `stream-pretrain verify RUN`. Return 0 if there is no fault."""
    from stream_pretrain.audit.verify_run import verify_run

    run = _run(arguments)
    result = verify_run(run, arguments.storage, fast=arguments.fast, step=arguments.step)
    if arguments.as_json:
        _print_json(asdict(result))
    for fault in result.faults:
        print(fault, file=sys.stderr)
    Console(stderr=True).print(
        f"{result.checkpoints} checkpoints, {result.steps} steps, {result.shards} shards: "
        f"{len(result.faults) or 'no'} faults"
    )
    return 1 if result.faults else 0


def replay(arguments: Any) -> int:
    """Run `stream-pretrain replay RUN`. Return 0 if the data gives the digest that is recorded."""
    from stream_pretrain.audit.metrics import digest_at
    from stream_pretrain.audit.replay import replay as replay_run
    from stream_pretrain.audit.run_history import read_run_history
    from stream_pretrain.observe.console import Progress

    run = _run(arguments)
    history = read_run_history(run, arguments.storage)
    until = arguments.step if arguments.step is not None else history.state.data_step
    with Progress("replaying", total=until, unit="steps") as progress:
        result = replay_run(
            history,
            last=arguments.step,
            recorded=digest_at(run, until),
            progress=lambda _: progress.advance(1),
        )
    if arguments.as_json:
        _print_json({**asdict(result), "same": result.same})
    else:
        verdict = "the same" if result.same else "NOT the same"
        print(
            f"data step {result.data_step}: replayed {result.digest}, "
            f"recorded {result.recorded}: {verdict}"
        )
    return 0 if result.same else 1


def report(arguments: Any) -> int:
    """Run `stream-pretrain report RUN`: write one HTML page, and print its path or URL."""
    from stream_pretrain.audit.report import write_report

    out = Path(arguments.out) if arguments.out is not None else None
    print(write_report(_run(arguments), out))
    return 0


def _run(arguments: Any) -> Store:
    return open_store(arguments.run, arguments.storage)


def _print_json(value: Any) -> None:
    """Print one indented JSON document on stdout."""
    json.dump(value, sys.stdout, indent=2)
    sys.stdout.write("\n")


def _print_table(title: str, rows: list[dict[str, Any]]) -> None:
    table = Table(title=title, title_justify="left")
    for name in rows[0] if rows else ("nothing",):
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    Console().print(table, markup=False)
