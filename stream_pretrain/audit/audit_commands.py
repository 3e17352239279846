"""The commands that look at runs. In: parsed arguments. Out: exit codes. The modules beside it do
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
    """`stream-pretrain demo`: 0 where both runs agree, 1 where they differ."""
    from stream_pretrain.audit import demo as play

    say = Console(stderr=True)
    result = play.demo(Path(arguments.out), say)
    play.show(result, say)
    if arguments.as_json:
        _print_json(play.summary(result))
    return 1 if result.differences else 0


def selftest(loaded: Any) -> int:
    """`stream-pretrain selftest`: 0 where the killed run ends like the other."""
    from stream_pretrain.audit.selftest import selftest as compare

    options = loaded.options
    say = Console(stderr=True)
    kept = Path(options.out) if options.out is not None else None
    place = nullcontext(str(kept)) if kept else tempfile.TemporaryDirectory(prefix="selftest-")
    with place as out:
        found = compare(
            loaded.to_yaml(),
            Path(out),
            steps=options.steps,
            kills=options.kills,
            seed=loaded.config.run.seed,
            say=say.print,
        )
    if options.as_json:
        _print_json(
            {
                "same": not found.differences,
                "differences": list(found.differences),
                "killed_after": list(found.killed_after),
                "digest": [found.whole.digest, found.interrupted.digest],
                "weights": [found.whole.weights, found.interrupted.weights],
            }
        )
    for line in found.differences:
        say.print(f"differs: {line}", markup=False)
    if not found.differences:
        kills = ", ".join(map(str, found.killed_after))
        say.print(f"same, bit for bit: digest {found.whole.digest}, killed after steps {kills}")
    return 1 if found.differences else 0


def trace(arguments: Any) -> int:
    """`stream-pretrain trace RUN --step N | --document ID`."""
    from stream_pretrain.audit.run_history import read_run_history
    from stream_pretrain.audit.trace import trace_document, trace_step

    history = read_run_history(_run(arguments), arguments.storage)
    if arguments.document is not None:
        sightings = trace_document(history, arguments.document, arguments.stream)
        if arguments.as_json:
            _print_json([asdict(sighting) for sighting in sightings])
        else:
            _print_table(f"document {arguments.document}", [asdict(s) for s in sightings])
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
            "document": piece.document if piece else "",
            "source": f"{piece.source}:{piece.position}" if piece else "",
            "ids": f"{piece.begin}..{piece.end - 1}" if piece else "",
        }
        for sample in samples
        for piece in (sample.pieces or (None,))
    ]
    _print_table(f"data step {arguments.step}", rows)
    return 0


def verify(arguments: Any) -> int:
    """`stream-pretrain verify RUN`: 0 where everything is whole."""
    from stream_pretrain.audit.verify_run import verify_run

    found = verify_run(_run(arguments), arguments.storage, fast=arguments.fast, step=arguments.step)
    if arguments.as_json:
        _print_json(asdict(found))
    for fault in found.faults:
        print(fault, file=sys.stderr)
    say = Console(stderr=True)
    say.print(
        f"{found.checkpoints} checkpoints, {found.steps} steps, {found.shards} shards: "
        f"{len(found.faults) or 'no'} faults"
    )
    return 1 if found.faults else 0


def replay(arguments: Any) -> int:
    """`stream-pretrain replay RUN`: 0 where the data gives the digest that the run recorded."""
    from stream_pretrain.audit.metrics import digest_at
    from stream_pretrain.audit.replay import replay as read_again
    from stream_pretrain.audit.run_history import read_run_history
    from stream_pretrain.observe.console import Progress

    run = _run(arguments)
    history = read_run_history(run, arguments.storage)
    until = arguments.step if arguments.step is not None else history.state.data_step
    with Progress("replaying", total=until, unit="steps") as progress:
        found = read_again(
            history,
            last=arguments.step,
            recorded=digest_at(run, until),
            progress=lambda _: progress.advance(1),
        )
    if arguments.as_json:
        _print_json({**asdict(found), "same": found.same})
    else:
        verdict = "the same" if found.same else "NOT the same"
        print(
            f"data step {found.data_step}: replayed {found.digest}, "
            f"recorded {found.recorded}: {verdict}"
        )
    return 0 if found.same else 1


def report(arguments: Any) -> int:
    """`stream-pretrain report RUN`: writes one HTML page and prints where."""
    from stream_pretrain.audit.report import write_report

    out = Path(arguments.out) if arguments.out is not None else None
    print(write_report(_run(arguments), out))
    return 0


def _run(arguments: Any) -> Store:
    return open_store(arguments.run, arguments.storage)


def _print_json(value: Any) -> None:
    """One indented JSON document on stdout."""
    json.dump(value, sys.stdout, indent=2)
    sys.stdout.write("\n")


def _print_table(title: str, rows: list[dict[str, Any]]) -> None:
    table = Table(title=title, title_justify="left")
    for name in rows[0] if rows else ("nothing",):
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    Console().print(table, markup=False)
