"""Promise 8 (docs/architecture.md): batches can be explained, digests replayed, damage is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import zstandard
from forked_runs import ForkedRuns
from runs import recorded, steps
from small import STEPS_PER_EPOCH, fit_arguments
from streaming.base.format import reader_from_json
from tokenizers import Tokenizer

from stream_pretrain.cli import main


@pytest.fixture(scope="module")
def run(forked_runs: ForkedRuns, dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two epochs."""
    root = tmp_path_factory.mktemp("run")
    arguments = fit_arguments(dataset, root / "run", stop__max_epochs=2)
    done = forked_runs.run(arguments, root / "log", record=root / "run.samples")
    assert done.code == 0, done.log
    return root / "run"


def ask(forked_runs: ForkedRuns, directory: Path, *arguments: str) -> tuple[int, str]:
    """Run a command; return its exit code and its output."""
    log = directory / "output"
    done = forked_runs.run(list(arguments), log)
    text = log.read_text()
    log.unlink()
    return done.code, text


def answer(text: str) -> object:
    """The JSON document in an output that also has progress lines."""
    candidates = [
        text[i:] for i, c in enumerate(text) if c in "{[" and (i == 0 or text[i - 1] == "\n")
    ]
    assert candidates, text
    value, _ = json.JSONDecoder().raw_decode(candidates[0])
    return value


def test_a_replay_of_the_data_alone_gives_the_runs_digest(
    forked_runs: ForkedRuns, run: Path, tmp_path: Path
) -> None:
    code, text = ask(forked_runs, tmp_path, "replay", str(run), "--json")
    assert code == 0
    result = answer(text)
    assert isinstance(result, dict)
    assert result["digest"] == steps(run)[2 * STEPS_PER_EPOCH]["digest"]
    assert result["same"] is True


def test_a_replay_up_to_a_step_gives_the_digest_of_that_step(
    forked_runs: ForkedRuns, run: Path, tmp_path: Path
) -> None:
    code, text = ask(forked_runs, tmp_path, "replay", str(run), "--step", "17", "--json")
    result = answer(text)
    assert isinstance(result, dict)
    assert (code, result["digest"]) == (0, steps(run)[17]["digest"])


def test_a_step_names_its_documents_with_the_words_they_hold(
    forked_runs: ForkedRuns, run: Path, dataset: Path, tmp_path: Path
) -> None:
    code, text = ask(forked_runs, tmp_path, "trace", str(run), "--step", "17", "--json")
    assert code == 0
    samples = answer(text)
    assert isinstance(samples, list)
    assert sorted(s["sample"] for s in samples) == recorded(run.with_suffix(".samples"))[17]
    corpus = {
        record["id"]: record["text"]
        for record in map(json.loads, (dataset.parent / "corpus.jsonl").read_text().splitlines())
    }
    rows = read_rows(dataset, tmp_path)
    tokenizer = Tokenizer.from_file(str(dataset / "tokenizer" / "tokenizer.json"))
    for sample in samples:
        assert sum(piece["end"] - piece["begin"] for piece in sample["pieces"]) == 17
        for piece in sample["pieces"]:
            words = corpus[piece["document"]]
            ids = rows[sample["sample"]][piece["begin"] : piece["end"]]
            decoded = tokenizer.decode(ids, skip_special_tokens=True)
            assert decoded in words
            with (dataset.parent / "corpus.jsonl").open("rb") as source:
                source.seek(piece["position"])
                assert json.loads(source.readline())["id"] == piece["document"]


def read_rows(dataset: Path, directory: Path) -> list[list[int]]:
    """Read all training rows with the reader of `streaming`; zstandard decompresses the shards."""
    index = json.loads((dataset / "train" / "index.json").read_text())
    rows: list[list[int]] = []
    for shard in index["shards"]:
        packed = (dataset / "train" / shard["zip_data"]["basename"]).read_bytes()
        raw = zstandard.ZstdDecompressor().decompress(packed, shard["raw_data"]["bytes"])
        (directory / shard["raw_data"]["basename"]).write_bytes(raw)
        reader = reader_from_json(str(directory), None, shard)
        rows += [reader[i]["tokens"].tolist() for i in range(len(reader))]
    return rows


def test_a_documents_steps_are_those_whose_trace_names_it(
    forked_runs: ForkedRuns, run: Path, tmp_path: Path
) -> None:
    _, text = ask(forked_runs, tmp_path, "trace", str(run), "--document", "doc-7", "--json")
    occurrences = answer(text)
    assert isinstance(occurrences, list)
    assert {s["epoch"] for s in occurrences} == {0, 1}
    for occurrence in occurrences:
        step = str(occurrence["data_step"])
        _, traced = ask(forked_runs, tmp_path, "trace", str(run), "--step", step, "--json")
        samples = answer(traced)
        assert isinstance(samples, list)
        [sample] = [s for s in samples if s["sample"] == occurrence["sample"]]
        assert "doc-7" in {piece["document"] for piece in sample["pieces"]}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--step", "9999"), "the run's checkpoint has steps 1 to 30"),
        (("--document", "nobody"), "no document 'nobody'"),
    ],
)
def test_what_the_run_never_saw_is_not_explained(
    arguments: tuple[str, ...], expected: str, forked_runs: ForkedRuns, run: Path, tmp_path: Path
) -> None:
    code, text = ask(forked_runs, tmp_path, "trace", str(run), *arguments)
    assert code == 1
    assert expected in text


def test_a_whole_run_is_found_whole(forked_runs: ForkedRuns, run: Path, tmp_path: Path) -> None:
    code, text = ask(forked_runs, tmp_path, "verify", str(run))
    assert code == 0, text
    assert "no faults" in text


def flipped(path: Path) -> None:
    """One bit of the file's middle byte turned over."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def test_a_flipped_bit_in_a_checkpoint_is_named(
    forked_runs: ForkedRuns, run: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    [file] = list((copy / "checkpoints" / "step-00000030" / "model").glob("*.distcp"))
    flipped(file)
    code, text = ask(forked_runs, tmp_path, "verify", str(copy))
    assert code == 1
    assert str(file) in text


def test_steps_missing_from_the_metrics_are_named(
    forked_runs: ForkedRuns, run: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    lines = (copy / "metrics.jsonl").read_text().splitlines(keepends=True)
    kept = [line for line in lines if not ('"step"' in line and json.loads(line)["step"] == 9)]
    (copy / "metrics.jsonl").write_text("".join(kept))
    code, text = ask(forked_runs, tmp_path, "verify", str(copy))
    assert code == 1
    assert "1 steps are missing, the first is 9" in text


def test_a_damaged_shard_is_named(forked_runs: ForkedRuns, dataset: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(dataset, data)
    arguments = fit_arguments(data, tmp_path / "run", stop__max_epochs=1)
    assert forked_runs.run(arguments, tmp_path / "log").code == 0
    shard = sorted((data / "train").glob("*.mds.zstd"))[1]
    flipped(shard)
    code, text = ask(forked_runs, tmp_path, "verify", str(tmp_path / "run"))
    assert code == 1
    assert shard.name in text
    assert ask(forked_runs, tmp_path, "verify", str(tmp_path / "run"), "--fast")[0] == 0


def test_data_that_is_no_longer_the_same_is_not_replayed(
    forked_runs: ForkedRuns, dataset: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    shutil.copytree(dataset, data)
    arguments = fit_arguments(data, tmp_path / "run", stop__max_epochs=1)
    assert forked_runs.run(arguments, tmp_path / "log").code == 0
    index = json.loads((data / "train" / "index.json").read_text())
    index["shards"] = index["shards"][1:]
    (data / "train" / "index.json").write_text(json.dumps(index))
    code, text = ask(forked_runs, tmp_path, "replay", str(tmp_path / "run"))
    assert code == 1
    assert "Point to the data as it was" in text


def test_a_run_without_checkpoints_is_not_verified(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(tmp_path)]) == 1
    assert "metrics.jsonl" in capfd.readouterr().err
