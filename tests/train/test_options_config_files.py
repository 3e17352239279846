"""Every file in `configs/` planned by the real command on a dataset of its sequence length, and the
small ones run."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from forked_runs import ForkedRuns
from options import events
from run_fixtures import WORDS

CONFIGS = Path(__file__).parents[2] / "configs"

# file -> files laid under it, sequence length, samples that its global batch needs
FILES: dict[str, tuple[tuple[str, ...], int, int]] = {
    "demo.yaml": ((), 128, 64),
    "shakespeare_char_cpu.yaml": ((), 64, 64),
    "llama_14m_cpu.yaml": ((), 512, 64),
    "pythia_160m_1gpu.yaml": ((), 2048, 1100),
    "llama_1b_8gpu.yaml": ((), 2048, 1100),
    "bucket.yaml": (("pythia_160m_1gpu.yaml",), 2048, 1100),
}


@pytest.fixture(scope="module")
def dataset_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int, int], Path]:
    """Byte-level datasets by sequence length, each made once."""
    from convert.cli import main

    root = tmp_path_factory.mktemp("datasets")

    @cache
    def make(seq_len: int, samples: int) -> Path:
        chosen = random.Random(seq_len)
        source, out = root / f"{seq_len}.jsonl", root / f"dataset-{seq_len}"
        words = (seq_len + 1) // 4
        with source.open("w") as file:
            for number in range(samples + 20):
                text = " ".join(chosen.choices(WORDS, k=words))
                file.write(json.dumps({"id": f"{number}", "text": text}) + "\n")
        arguments = ["build", "--input", str(source), "--out", str(out), "--tokenizer", "byte"]
        arguments += ["--seq_len", str(seq_len), "--validation", "0.03", "--id_key", "id"]
        assert main(arguments) == 0
        return out

    return make


def arguments(name: str, dataset: Path, run: Path) -> list[str]:
    """The files of a configuration, on this dataset, writing to `run`."""
    found: list[str] = []
    for file in (*FILES[name][0], name):
        found += ["--config", str(CONFIGS / file)]
    streams: list[dict[str, Any]] = [{"local": str(dataset)}]
    if name == "bucket.yaml":
        split = {"split": "validation", "name": "code"}
        streams = [{**streams[0], "weight": 0.8}, {**streams[0], **split, "weight": 0.2}]
        found += ["--data.validation", json.dumps([{"local": str(dataset)}])]
        found += ["--data.cache.limit", "null"]
    found += ["--data.train", json.dumps(streams), "--run.dir", str(run)]
    return [*found, "--data.cache.dir", str(run.parent / "cache")]


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_planned_on_data_of_its_length(
    name: str, forked_runs: ForkedRuns, dataset_of: Callable[[int, int], Path], tmp_path: Path
) -> None:
    _, seq_len, samples = FILES[name]
    dataset = dataset_of(seq_len, samples)
    log = tmp_path / "log"
    done = forked_runs.run(["plan", *arguments(name, dataset, tmp_path / "run")], log)
    assert done.code == 0, done.log
    planned = json.loads(done.log[done.log.index("{\n") :])
    assert planned["seq_len"] == seq_len
    assert planned["tokens_per_step"] == planned["global_batch"] * seq_len
    ranks = 8 if "8gpu" in name else 1
    assert planned["world_size"] == ranks
    assert planned["micro_batch"] * planned["micro_steps"] * ranks == planned["global_batch"]
    assert planned["warmup_steps"] > 0
    assert planned["validation"]
    assert not (tmp_path / "run").exists()


SMALL = {
    "demo.yaml": ["--schedule.warmup", "1"],
    "shakespeare_char_cpu.yaml": ["--schedule.warmup", "1", "--evaluation.batches", "1"],
    "llama_14m_cpu.yaml": ["--batch.global_size", "2", "--batch.micro_size", "2"],
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow if n.startswith("llama") else ()) for n in SMALL],
)
def test_a_small_file_runs(
    name: str, forked_runs: ForkedRuns, dataset_of: Callable[[int, int], Path], tmp_path: Path
) -> None:
    _, seq_len, samples = FILES[name]
    given = arguments(name, dataset_of(seq_len, samples), tmp_path / "run")
    given += ["--stop.max_steps", "3", "--evaluation.batches", "1", "--data.workers", "0"]
    done = forked_runs.run(["fit", *given, *SMALL[name]], tmp_path / "log")
    assert done.code == 0, done.log
    found = [event["loss"] for event in events(tmp_path / "run", "step")]
    assert len(found) == 3
    assert found[-1] < found[0]
    assert events(tmp_path / "run", "evaluation")
