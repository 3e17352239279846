"""Show in three minutes that a killed run resumes exactly.

The demo converts a corpus in an empty directory, trains on it twice, kills the second training with
SIGKILL, resumes it, and compares both runs. The corpus is the standard library of the running
Python, so that nothing is downloaded. Both commands run as child processes, as a person would run
them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from stream_pretrain.audit import subprocess_runs
from stream_pretrain.audit.compare_runs import FinalState, differences, read_final_state
from stream_pretrain.audit.svg_chart import Marker, Series, line_chart
from stream_pretrain.errors import ConfigError, Fault
from stream_pretrain.storage.store import open_store

CORPUS_BYTES = 500_000
VOCAB_SIZE = 2048
SEQ_LEN = 128
PROMPT = "def "


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """The result of a demo. `killed_after` is the last step that the killed process recorded."""

    uninterrupted: FinalState
    interrupted: FinalState
    killed_after: int
    steps_per_epoch: int
    text: str
    chart: Path
    differences: tuple[str, ...]
    seconds: float


def run_demo(out: Path, console: Console) -> DemoResult:
    """Run the demo in the directory `out`.

    Raises:
        ConfigError: `out` is not empty.
    """
    if out.exists() and any(out.iterdir()):
        raise ConfigError.of(
            [Fault(path="--out", found=str(out), remedy="is not empty; name a new directory")]
        )
    started = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    _make_dataset(out, console)
    config = _write_config(out)
    steps = _steps_per_epoch(out, config)
    console.print("training without interruption …")
    subprocess_runs.run_command(
        subprocess_runs.FIT, _fit_arguments(config, out / "whole"), out / "whole.log"
    )
    console.print("training again, to be killed in the middle of the second epoch …")
    killed_after = _train_killed(config, out, steps)
    console.print(
        f"killed with SIGKILL after step {killed_after}; starting the same command again …"
    )
    subprocess_runs.run_command(
        subprocess_runs.FIT, _fit_arguments(config, out / "interrupted"), out / "interrupted.log"
    )
    uninterrupted, interrupted = (
        read_final_state(open_store(out / name)) for name in ("whole", "interrupted")
    )
    return DemoResult(
        uninterrupted=uninterrupted,
        interrupted=interrupted,
        killed_after=killed_after,
        steps_per_epoch=steps,
        text=_generate(out / "interrupted"),
        chart=_draw_losses(out, uninterrupted, interrupted, killed_after),
        differences=tuple(differences(uninterrupted, interrupted)),
        seconds=time.monotonic() - started,
    )


def corpus() -> Iterator[tuple[str, str]]:
    """Yield (name, text) of the standard library in a fixed order, up to `CORPUS_BYTES`."""
    root = Path(sysconfig.get_paths()["stdlib"])
    total = 0
    for path in sorted(root.rglob("*.py"), key=lambda path: path.relative_to(root).as_posix()):
        name = path.relative_to(root).as_posix()
        if name.startswith(("site-packages/", "test/")) or "/test" in name or "__pycache__" in name:
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except (UnicodeDecodeError, OSError):
            continue
        if total + len(text) > CORPUS_BYTES:
            return
        total += len(text)
        if text.strip():
            yield name, text


def _make_dataset(out: Path, console: Console) -> None:
    source = out / "corpus.jsonl"
    with source.open("w", encoding="utf-8") as file:
        for name, text in corpus():
            file.write(json.dumps({"id": name, "text": text}) + "\n")
    size = source.stat().st_size / 1e6
    console.print(f"corpus: {size:.1f} MB of Python's standard library; training a tokenizer …")
    log = out / "convert.log"
    tokenizer = ["tokenizer", "--input", str(source), "--vocab_size", str(VOCAB_SIZE)]
    subprocess_runs.run_command(
        subprocess_runs.CONVERT, [*tokenizer, "--out", str(out / "tokenizer")], log
    )
    console.print("writing MDS shards …")
    subprocess_runs.run_command(
        subprocess_runs.CONVERT,
        [
            *("build", "--input", str(source), "--out", str(out / "dataset"), "--id_key", "id"),
            *("--tokenizer", str(out / "tokenizer"), "--seq_len", str(SEQ_LEN)),
            *("--validation", "2"),
        ],
        log,
    )


def _write_config(out: Path) -> Path:
    """Copy the packaged configuration to a file that can be read and changed."""
    path = out / "demo.yaml"
    path.write_text(files("stream_pretrain.audit").joinpath("demo.yaml").read_text())
    return path


def _fit_arguments(config: Path, run: Path) -> list[str]:
    train = json.dumps([{"local": str(config.parent / "dataset")}])
    return ["--config", str(config), "--data.train", train, "--run.dir", str(run)]


def _steps_per_epoch(out: Path, config: Path) -> int:
    command = [
        sys.executable,
        "-m",
        "stream_pretrain.cli",
        "plan",
        *_fit_arguments(config, out / "whole"),
    ]
    done = subprocess.run([*command, "--json"], check=True, stdout=subprocess.PIPE)
    return int(json.loads(done.stdout)["steps_per_epoch"])


def _train_killed(config: Path, out: Path, steps_per_epoch: int) -> int:
    metrics = out / "interrupted" / "metrics.jsonl"
    middle = steps_per_epoch + steps_per_epoch // 2
    subprocess_runs.run_and_kill(
        subprocess_runs.FIT,
        _fit_arguments(config, out / "interrupted"),
        out / "interrupted.log",
        lambda: subprocess_runs.last_step(metrics) >= middle,
    )
    return subprocess_runs.last_step(metrics)


def _generate(run: Path) -> str:
    command = [sys.executable, "-m", "stream_pretrain.cli", "generate", str(run)]
    options = ["--prompt", PROMPT, "--max_tokens", "60", "--seed", "1"]
    done = subprocess.run([*command, *options], check=True, stdout=subprocess.PIPE)
    return done.stdout.decode(errors="replace").strip()


def _draw_losses(
    out: Path, uninterrupted: FinalState, interrupted: FinalState, killed_after: int
) -> Path:
    path = out / "loss.svg"
    series = [
        Series(name="uninterrupted", points=sorted(uninterrupted.losses.items())),
        Series(name="killed and resumed", points=sorted(interrupted.losses.items()), dashed=True),
    ]
    path.write_text(
        line_chart(
            series,
            title="Loss of both runs",
            x_label="step",
            y_label="loss (nats per token)",
            markers=[Marker(x=killed_after, label="SIGKILL", kind="restart")],
        )
    )
    return path


def summary(result: DemoResult) -> dict[str, Any]:
    """Return the result as plain JSON values."""
    return {
        "same": not result.differences,
        "differences": list(result.differences),
        "steps": result.uninterrupted.step,
        "killed_after": result.killed_after,
        "digest": [result.uninterrupted.digest, result.interrupted.digest],
        "final_loss": [result.uninterrupted.final_loss, result.interrupted.final_loss],
        "weights": [result.uninterrupted.weights, result.interrupted.weights],
        "chart": str(result.chart),
        "seconds": result.seconds,
    }


def print_result(result: DemoResult, console: Console) -> None:
    """Print both runs side by side, and whether they are the same."""
    table = Table(title=f"killed after step {result.killed_after} of {result.uninterrupted.step}")
    table.add_column("")
    table.add_column("uninterrupted", overflow="fold")
    table.add_column("killed and resumed", overflow="fold")
    rows = [
        ("steps", str(result.uninterrupted.step), str(result.interrupted.step)),
        ("data digest", result.uninterrupted.digest, result.interrupted.digest),
        ("final loss", str(result.uninterrupted.final_loss), str(result.interrupted.final_loss)),
        ("weights", result.uninterrupted.weights, result.interrupted.weights),
    ]
    for row in rows:
        table.add_row(*row)
    console.print(table)
    console.print(f"generated text:\n{result.text}\n", markup=False, highlight=False)
    console.print(f"loss curves: {result.chart}", soft_wrap=True)
    if result.differences:
        console.print("THE RUNS DIFFER:\n" + "\n".join(result.differences), markup=False)
    else:
        console.print(f"the runs are the same, bit for bit ({result.seconds:.0f} s)")
