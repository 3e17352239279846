"""Measure the time and memory of a conversion, beside a lower bound and other tools.

The corpus is made of the Python files and documents of the installed packages (100 MB of JSON
lines). The result is a table of wall-clock seconds, processor seconds, peak memory of all processes
together (PSS) and tokens. Each contender runs in a process of its own, and rounds are interleaved,
so that a busy machine is busy for all. The output is not checked beyond its token count.

    python benchmarks/convert.py --rounds 3
    python benchmarks/convert.py --contenders ours,floor --megabytes 400
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

ENDINGS = (".py", ".md", ".rst", ".txt", ".pyi")
SEQ_LEN = 2048
WORKERS = 2
POLL_SECONDS = 0.1  # each poll of the memory costs milliseconds


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The measurements of one run of one contender."""

    name: str
    wall_seconds: float
    cpu_seconds: float
    peak_megabytes: float
    tokens: int


def main() -> int:
    """Build what is missing, run the rounds, print the table."""
    here = Path(__file__).resolve().parent
    sys.path[:] = [
        entry for entry in sys.path if Path(entry).resolve() != here
    ]  # this file has the name of the package
    arguments = parse_arguments()
    if arguments.contender:
        CONTENDERS[arguments.contender](arguments.work)
        return 0
    arguments.work.mkdir(parents=True, exist_ok=True)
    make_corpus(arguments.work / "corpus.jsonl", arguments.megabytes * 10**6)
    make_tokenizer(arguments.work)
    names = arguments.contenders.split(",")
    tried = [
        measure(name, arguments.work, arguments.python.get(name, sys.executable))
        for _ in range(arguments.rounds)
        for name in names
    ]
    runs = [run for run in tried if run is not None]
    print(table(runs, [name for name in names if any(run.name == name for run in runs)]))
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(run) for run in runs], indent=1))
    return 0


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "convert-bench")
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--contenders", default="ours,floor,ours-tokenizers,litdata,foundry")
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        help="NAME=PYTHON: another environment for a contender",
    )
    parser.add_argument("--json", type=Path, help="write every run here")
    parser.add_argument("--contender", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.python = dict(item.split("=", 1) for item in arguments.python)
    return arguments


def make_corpus(path: Path, size: int) -> None:
    """Write the files of the installed packages as JSON lines, repeated as needed."""
    if path.exists() and abs(path.stat().st_size - size) < 0.2 * size:
        return
    roots = [Path(sysconfig.get_path(name)) for name in ("purelib", "stdlib")]
    files = [file for root in roots for file in sorted(root.rglob("*")) if file.suffix in ENDINGS]
    written = 0
    with path.open("w", encoding="utf-8") as out:
        while written < size:
            for file in files:
                try:
                    text = file.read_text(encoding="utf-8")
                except (OSError, UnicodeDecodeError):
                    continue
                if text:
                    written += out.write(json.dumps({"text": text, "id": str(file)}) + "\n")
                if written >= size:
                    break


def make_tokenizer(work: Path) -> None:
    """Train a byte-level BPE of 32,000 tokens."""
    if (work / "tokenizer/tokenizer.json").exists():
        return
    words = ["tokenizer", "--input", work / "corpus.jsonl", "--out", work / "tokenizer"]
    words += ["--vocab_size", 32_000, "--max_bytes", "40MB", "--quiet"]
    subprocess.run([sys.executable, "-m", "convert.cli", *map(str, words)], check=True)


def measure(name: str, work: Path, python: str) -> Measured | None:
    """Run one contender; its last line of output is its number of tokens."""
    command = [python, __file__, "--contender", name, "--work", str(work)]
    began = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    monitor = ProcessTreeMonitor(child.pid)
    output, errors = child.communicate()
    wall = time.perf_counter() - began
    monitor.stop()
    if child.returncode:
        print(f"{name} failed:\n{errors[-2000:]}", file=sys.stderr)
        return None
    return Measured(
        name=name,
        wall_seconds=wall,
        cpu_seconds=monitor.cpu_seconds,
        peak_megabytes=monitor.peak / 1e6,
        tokens=tokens_of(output.strip().splitlines()[-1]),
    )


def tokens_of(line: str) -> int:
    """Parse a number, or the output of `convert-mds build --json`."""
    if line.startswith("{"):
        return int(json.loads(line)["splits"]["train"]["tokens"])
    return int(line)


class ProcessTreeMonitor:
    """Polls the memory and processor time of a process and all its descendants.

    What a process does after the last poll is missed: up to a tenth of a second.
    """

    def __init__(self, pid: int) -> None:
        self._pid, self._done = pid, threading.Event()
        self._ticks: dict[int, int] = {}
        self.peak = 0
        self._thread = threading.Thread(target=self._poll)
        self._thread.start()

    @property
    def cpu_seconds(self) -> float:
        """The user and system time of all processes."""
        return sum(self._ticks.values()) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        """Stop polling."""
        self._done.set()
        self._thread.join()

    def _poll(self) -> None:
        while not self._done.wait(POLL_SECONDS):
            pids = list(descendants(self._pid))
            self.peak = max(self.peak, sum(map(proportional_bytes, pids)))
            for pid in pids:
                self._ticks[pid] = max(self._ticks.get(pid, 0), cpu_ticks(pid))


def cpu_ticks(pid: int) -> int:
    """Return the clock ticks of a process's own threads."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])


def descendants(pid: int) -> Iterator[int]:
    """Yield a process and all its descendants."""
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            pids = children.read_text().split()
        except OSError:
            continue
        for child in pids:
            yield from descendants(int(child))


def proportional_bytes(pid: int) -> int:
    """Return the PSS, which counts shared pages once among those that share them."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def table(runs: list[Measured], names: list[str]) -> str:
    """Return medians with ranges as a Markdown table."""
    lines = ["| contender | wall s | CPU s | peak MB | tokens |", "|---|---|---|---|---|"]
    for name in names:
        own = [run for run in runs if run.name == name]
        cells = [
            spread([run.wall_seconds for run in own], 2),
            spread([run.cpu_seconds for run in own], 2),
            spread([run.peak_megabytes for run in own], 0),
            f"{own[0].tokens:,}",
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def spread(values: list[float], digits: int) -> str:
    """`median (least to most)`."""
    least, most = min(values), max(values)
    return f"{statistics.median(values):.{digits}f} ({least:.{digits}f} to {most:.{digits}f})"


def ours(work: Path, *more: str) -> None:
    """Run `convert-mds build` as a user runs it."""
    words = [
        "-m",
        "convert.cli",
        "build",
        "--input",
        str(work / "corpus.jsonl"),
        "--out",
        str(work / "out-ours"),
    ]
    words += ["--tokenizer", str(work / "tokenizer"), "--seq_len", str(SEQ_LEN), "--quiet"]
    words += ["--workers", str(WORKERS), "--overwrite", "--id_key", "id", "--json", *more]
    os.execv(sys.executable, [sys.executable, *words])


def ours_tokenizers(work: Path) -> None:
    """Run the same without the fast encoder."""
    ours(work, "--encoder", "tokenizers")


def floor(work: Path) -> None:
    """Measure the lower bound: parse JSON and encode on two processes, with no output."""
    import multiprocessing

    size = (work / "corpus.jsonl").stat().st_size
    ranges = [(work, size * i // WORKERS, size * (i + 1) // WORKERS) for i in range(WORKERS)]
    with multiprocessing.get_context("fork").Pool(WORKERS) as pool:
        print(sum(pool.starmap(encode_range, ranges)))


def encode_range(work: Path, start: int, end: int) -> int:
    """Return the number of tokens, end-of-text included, of the lines that start in a range."""
    from gigatoken.gigatoken_rs import load_hf_json

    tokenizer = load_hf_json((work / "tokenizer/tokenizer.json").read_bytes())
    tokens = 0
    with (work / "corpus.jsonl").open("rb") as file:
        if start:
            file.seek(start - 1)
            file.readline()
        while file.tell() < end:
            lines = file.readlines(min(4 << 20, max(1, end - file.tell() - 1)))
            texts = [json.loads(line)["text"] for line in lines]
            tokens += len(tokenizer.encode_batch(texts, parallel=False).layout.content.data)
            tokens += len(texts)
    return tokens


def texts_of(work: Path) -> Iterator[str]:
    """Yield the texts of the corpus."""
    with (work / "corpus.jsonl").open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)["text"]


def foundry(work: Path) -> None:
    """Concatenate as LLM Foundry describes it, in one process.

    Each document is encoded, the ids are joined with end-of-text and cut into samples, and each
    sample is written with `MDSWriter`.
    """
    import shutil

    import numpy as np
    from streaming import MDSWriter
    from tokenizers import Tokenizer

    shutil.rmtree(work / "out-foundry", ignore_errors=True)
    tokenizer = Tokenizer.from_file(str(work / "tokenizer/tokenizer.json"))
    columns = {"tokens": f"ndarray:uint16:{SEQ_LEN + 1}"}
    buffer: list[int] = []
    tokens = 0
    with MDSWriter(
        out=str(work / "out-foundry"), columns=columns, compression="zstd", hashes=["xxh64"]
    ) as writer:
        for text in texts_of(work):
            ids = [*tokenizer.encode(text, add_special_tokens=False).ids, 0]
            buffer += ids
            tokens += len(ids)
            while len(buffer) > SEQ_LEN:
                writer.write({"tokens": np.array(buffer[: SEQ_LEN + 1], dtype=np.uint16)})
                buffer = buffer[SEQ_LEN + 1 :]
    print(tokens)


def litdata(work: Path) -> None:
    """Run `litdata.optimize` with its token loader on two workers, a range of lines each."""
    import shutil

    from litdata import TokensLoader, optimize

    shutil.rmtree(work / "out-litdata", ignore_errors=True)
    size = (work / "corpus.jsonl").stat().st_size
    cuts = [size * i // 16 for i in range(17)]
    optimize(
        fn=LitdataEncoder(work),
        inputs=list(pairwise(cuts)),
        output_dir=str(work / "out-litdata"),
        num_workers=WORKERS,
        chunk_size=SEQ_LEN * 8192 + 8192,
        item_loader=TokensLoader(block_size=SEQ_LEN + 1),
    )
    index = json.loads((work / "out-litdata/index.json").read_text())
    print(sum(chunk["dim"] for chunk in index["chunks"]))


class LitdataEncoder:
    """Encodes the lines that start in a byte range; the tokenizer is loaded in the worker."""

    def __init__(self, work: Path) -> None:
        self._work = work
        self._tokenizer: Any = None

    def __call__(self, byte_range: tuple[int, int]) -> Iterator[Any]:
        """Yield the ids of each document."""
        import torch
        from tokenizers import Tokenizer

        if self._tokenizer is None:
            self._tokenizer = Tokenizer.from_file(str(self._work / "tokenizer/tokenizer.json"))
        with (self._work / "corpus.jsonl").open("rb") as file:
            if byte_range[0]:
                file.seek(byte_range[0] - 1)
                file.readline()
            while file.tell() < byte_range[1]:
                text = json.loads(file.readline())["text"]
                ids = self._tokenizer.encode(text, add_special_tokens=False).ids
                yield torch.tensor([*ids, 0], dtype=torch.uint16)


def datatrove(work: Path) -> None:
    """Run datatrove's reader and `DocumentTokenizer` on two tasks."""
    import shutil

    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.tokens import DocumentTokenizer

    for name in ("out-datatrove", "datatrove-input", "datatrove-logs"):
        shutil.rmtree(work / name, ignore_errors=True)
    (work / "datatrove-input").mkdir()
    lines = (work / "corpus.jsonl").read_bytes().splitlines(keepends=True)
    for number in range(WORKERS):
        half = lines[len(lines) * number // WORKERS : len(lines) * (number + 1) // WORKERS]
        (work / "datatrove-input" / f"{number}.jsonl").write_bytes(b"".join(half))
    del lines
    LocalPipelineExecutor(
        pipeline=[
            JsonlReader(str(work / "datatrove-input")),
            DocumentTokenizer(
                output_folder=str(work / "out-datatrove"),
                tokenizer_name_or_path=str(work / "tokenizer/tokenizer.json"),
                eos_token="<|endoftext|>",
                shuffle_documents=False,
            ),
        ],
        tasks=WORKERS,
        workers=WORKERS,
        logging_dir=str(work / "datatrove-logs"),
    ).run()
    sizes = [file.stat().st_size for file in (work / "out-datatrove").glob("*.ds")]
    print(sum(sizes) // 2)


CONTENDERS: dict[str, Callable[[Path], None]] = {
    "ours": ours,
    "ours-tokenizers": ours_tokenizers,
    "floor": floor,
    "litdata": litdata,
    "foundry": foundry,
    "datatrove": datatrove,
}

if __name__ == "__main__":
    raise SystemExit(main())
