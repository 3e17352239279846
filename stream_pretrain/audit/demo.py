"""The main job in three minutes. In: an empty directory. Out: two runs, a real kill between them,
and whether they agree.

The corpus is the running Python's own standard library, so nothing is downloaded. Both commands are
driven as child processes, as a person would; the kill is a SIGKILL.
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
from stream_pretrain.audit.compare_runs import FinalState, differences, ending
from stream_pretrain.audit.svg_chart import Mark, Series, line_chart
from stream_pretrain.errors import ConfigError, Fault
from stream_pretrain.storage.store import open_store

CORPUS_BYTES = 500_000
VOCAB_SIZE = 2048
SEQ_LEN = 128
PROMPT = "def "


@dataclass(frozen=True, kw_only=True)
class Result:
    """What the demo found. `killed_after` is the last step that the killed process wrote down."""

    whole: FinalState
    interrupted: FinalState
    killed_after: int
    steps_per_epoch: int
    text: str
    chart: Path
    differences: tuple[str, ...]
    seconds: float


def demo(out: Path, say: Console) -> Result:
    """Make everything below `out`.

    Raises:
        ConfigError: `out` holds something already.
    """
    if out.exists() and any(out.iterdir()):
        raise ConfigError.of(
            [Fault(path="--out", found=str(out), remedy="is not empty; name a new directory")]
        )
    begun = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    _make_dataset(out, say)
    config = _write_config(out)
    steps = _steps_per_epoch(out, config)
    say.print("training without interruption …")
    subprocess_runs.run(subprocess_runs.FIT, _fit(config, out / "whole"), out / "whole.log")
    say.print("training again, to be killed in the middle of the second epoch …")
    killed_after = _train_killed(config, out, steps)
    say.print(f"killed with SIGKILL after step {killed_after}; starting the same command again …")
    subprocess_runs.run(
        subprocess_runs.FIT, _fit(config, out / "interrupted"), out / "interrupted.log"
    )
    whole, interrupted = (ending(open_store(out / name)) for name in ("whole", "interrupted"))
    return Result(
        whole=whole,
        interrupted=interrupted,
        killed_after=killed_after,
        steps_per_epoch=steps,
        text=_generate(out / "interrupted"),
        chart=_draw(out, whole, interrupted, killed_after),
        differences=tuple(differences(whole, interrupted)),
        seconds=time.monotonic() - begun,
    )


def corpus() -> Iterator[tuple[str, str]]:
    """(name, text) of the standard library's sources in a fixed order, up to `CORPUS_BYTES`."""
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


def _make_dataset(out: Path, say: Console) -> None:
    source = out / "corpus.jsonl"
    with source.open("w", encoding="utf-8") as file:
        for name, text in corpus():
            file.write(json.dumps({"id": name, "text": text}) + "\n")
    size = source.stat().st_size / 1e6
    say.print(f"corpus: {size:.1f} MB of Python's standard library; training a tokenizer …")
    log = out / "convert.log"
    tokenizer = ["tokenizer", "--input", str(source), "--vocab_size", str(VOCAB_SIZE)]
    subprocess_runs.run(subprocess_runs.CONVERT, [*tokenizer, "--out", str(out / "tokenizer")], log)
    say.print("writing MDS shards …")
    subprocess_runs.run(
        subprocess_runs.CONVERT,
        [
            *("build", "--input", str(source), "--out", str(out / "dataset"), "--id_key", "id"),
            *("--tokenizer", str(out / "tokenizer"), "--seq_len", str(SEQ_LEN)),
            *("--validation", "2"),
        ],
        log,
    )


def _write_config(out: Path) -> Path:
    """The packaged configuration, where the person can find and change it."""
    path = out / "demo.yaml"
    path.write_text(files("stream_pretrain.audit").joinpath("demo.yaml").read_text())
    return path


def _fit(config: Path, run: Path) -> list[str]:
    train = json.dumps([{"local": str(config.parent / "dataset")}])
    return ["--config", str(config), "--data.train", train, "--run.dir", str(run)]


def _steps_per_epoch(out: Path, config: Path) -> int:
    command = [sys.executable, "-m", "stream_pretrain.cli", "plan", *_fit(config, out / "whole")]
    planned = subprocess.run([*command, "--json"], check=True, stdout=subprocess.PIPE)
    return int(json.loads(planned.stdout)["steps_per_epoch"])


def _train_killed(config: Path, out: Path, steps_per_epoch: int) -> int:
    metrics = out / "interrupted" / "metrics.jsonl"
    middle = steps_per_epoch + steps_per_epoch // 2
    subprocess_runs.run_and_kill(
        subprocess_runs.FIT,
        _fit(config, out / "interrupted"),
        out / "interrupted.log",
        lambda: subprocess_runs.last_step(metrics) >= middle,
    )
    return subprocess_runs.last_step(metrics)


def _generate(run: Path) -> str:
    command = [sys.executable, "-m", "stream_pretrain.cli", "generate", str(run)]
    options = ["--prompt", PROMPT, "--max_tokens", "60", "--seed", "1"]
    done = subprocess.run([*command, *options], check=True, stdout=subprocess.PIPE)
    return done.stdout.decode(errors="replace").strip()


def _draw(out: Path, whole: FinalState, interrupted: FinalState, killed_after: int) -> Path:
    path = out / "loss.svg"
    series = [
        Series(name="uninterrupted", points=sorted(whole.losses.items())),
        Series(name="killed and resumed", points=sorted(interrupted.losses.items()), dashed=True),
    ]
    path.write_text(
        line_chart(
            series,
            title="Loss of both runs",
            x_label="step",
            y_label="loss (nats per token)",
            marks=[Mark(x=killed_after, label="SIGKILL", kind="restart")],
        )
    )
    return path


def summary(result: Result) -> dict[str, Any]:
    """The result in plain JSON values."""
    return {
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


def show(result: Result, say: Console) -> None:
    """Print both runs side by side, and the verdict."""
    table = Table(title=f"killed after step {result.killed_after} of {result.whole.step}")
    table.add_column("")
    table.add_column("uninterrupted", overflow="fold")
    table.add_column("killed and resumed", overflow="fold")
    pairs = [
        ("steps", str(result.whole.step), str(result.interrupted.step)),
        ("data digest", result.whole.digest, result.interrupted.digest),
        ("final loss", str(result.whole.final_loss), str(result.interrupted.final_loss)),
        ("weights", result.whole.weights, result.interrupted.weights),
    ]
    for row in pairs:
        table.add_row(*row)
    say.print(table)
    say.print(f"generated text:\n{result.text}\n", markup=False, highlight=False)
    say.print(f"loss curves: {result.chart}", soft_wrap=True)
    if result.differences:
        say.print("THE RUNS DIFFER:\n" + "\n".join(result.differences), markup=False)
    else:
        say.print(f"the runs are the same, bit for bit ({result.seconds:.0f} s)")
