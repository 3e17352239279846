"""Promise 4: nothing about data or training changes silently between two starts of a run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from forked_runs import ForkedRuns
from runs import end_of, steps
from small import fit_arguments

from convert.cli import main as convert

HALF = {"stop__max_steps": 20, "stop__max_epochs": 9, "schedule__kind": "constant"}
REST = {**HALF, "stop__max_steps": 40}


@pytest.fixture(scope="module")
def half(forked_runs: ForkedRuns, dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has finished 20 steps of a schedule without an end."""
    root = tmp_path_factory.mktemp("half")
    done = forked_runs.run(fit_arguments(dataset, root / "run", **HALF), root / "log")
    assert done.code == 0, done.log
    return root / "run"


@pytest.fixture(scope="module")
def full(
    forked_runs: ForkedRuns, dataset: Path, half: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The same run taken on to 40 steps."""
    root = tmp_path_factory.mktemp("full")
    shutil.copytree(half, root / "run")
    done = forked_runs.run(fit_arguments(dataset, root / "run", **REST), root / "log")
    assert done.code == 0, done.log
    return root / "run"


def refused(forked_runs: ForkedRuns, arguments: list[str], place: Path) -> str:
    """What a start says that must be refused with exit code 2."""
    done = forked_runs.run(arguments, place / "log")
    assert done.code == 2, done.log
    return done.log


def copy_of(half: Path, tmp_path: Path) -> Path:
    """A run to go on from, of the test's own."""
    shutil.copytree(half, tmp_path / "run")
    return tmp_path / "run"


ORDER = {
    "shuffle algorithm": ({"data__shuffle__algo": "py1br"}, "shuffle_algo: py1e -> py1br"),
    "block size": ({"data__shuffle__block_size": 64}, "shuffle_block_size: 524288 -> 64"),
    "shuffle seed": ({"data__shuffle__seed": 99}, "shuffle_seed: 3 -> 99"),
    "sampling granularity": (
        {"data__shuffle__sampling_granularity": 7},
        "sampling_granularity: 1 -> 7",
    ),
    "canonical nodes": ({"data__shuffle__canonical_nodes": 4}, "canonical_nodes: 8 -> 4"),
    "batching": ({"data__batching": "stratified"}, "batching_method: random -> stratified"),
    "global batch": ({"batch__global_size": 4}, "global_batch: 8 -> 4"),
    "repeats": ({"repeat": 2.0}, "drawn: 120 -> 240"),
}


@pytest.mark.parametrize(("changes", "line"), ORDER.values(), ids=ORDER.keys())
def test_another_order_is_refused_with_its_difference(
    changes: dict[str, object],
    line: str,
    forked_runs: ForkedRuns,
    dataset: Path,
    half: Path,
    tmp_path: Path,
) -> None:
    settings = dict(changes)
    if "repeat" in settings:
        settings["data__train"] = [{"local": str(dataset), "repeat": settings.pop("repeat")}]
    run = copy_of(half, tmp_path)
    said = refused(forked_runs, fit_arguments(dataset, run, **{**REST, **settings}), tmp_path)
    name, _, values = line.partition(": ")
    assert f"{name} is {values}" in said
    assert "--run.on_data_change accept" in said


def rebuilt(dataset: Path, place: Path, *options: str, edit: bool = False) -> Path:
    """The corpus of `dataset` converted again with other options, or with one document changed."""
    source = place / "corpus.jsonl"
    lines = (dataset.parent / "corpus.jsonl").read_text().splitlines()
    if edit:
        first = json.loads(lines[0])
        first["text"] = first["text"][::-1]
        lines[0] = json.dumps(first)
    source.write_text("\n".join(lines) + "\n")
    out = place / "tiny"
    arguments = ["build", "--input", str(source), "--out", str(out), "--validation", "0.1"]
    arguments += ["--id_key", "id", "--tokenizer", "byte"]
    defaults = ["--seq_len", "16", "--shard_size", "1024"]
    assert convert([*arguments, *(options or defaults)]) == 0
    return out


CONTENT = {
    "same rows in other shards": (("--seq_len", "16", "--shard_size", "2048"), False),
    "other content of the same size": ((), True),
    "other seq_len": (("--seq_len", "8", "--shard_size", "1024"), False),
}


@pytest.mark.parametrize(("options", "edit"), CONTENT.values(), ids=CONTENT.keys())
def test_other_content_is_refused(
    options: tuple[str, ...],
    edit: bool,
    forked_runs: ForkedRuns,
    dataset: Path,
    half: Path,
    tmp_path: Path,
) -> None:
    other = rebuilt(dataset, tmp_path, *options, edit=edit)
    run = copy_of(half, tmp_path)
    said = refused(forked_runs, fit_arguments(other, run, **REST), tmp_path)
    assert "streams[0].index" in said


def test_appended_rows_are_refused(
    forked_runs: ForkedRuns, dataset: Path, half: Path, tmp_path: Path
) -> None:
    longer = tmp_path / "longer"
    longer.mkdir()
    lines = (dataset.parent / "corpus.jsonl").read_text()
    (longer / "corpus.jsonl").write_text(lines + json.dumps({"id": "new", "text": "x" * 99}) + "\n")
    other = rebuilt(longer / "tiny", tmp_path)
    said = refused(forked_runs, fit_arguments(other, copy_of(half, tmp_path), **REST), tmp_path)
    assert "streams[0].samples" in said


def test_another_tokenizer_is_refused(
    forked_runs: ForkedRuns, dataset: Path, half: Path, tmp_path: Path
) -> None:
    corpus = str(dataset.parent / "corpus.jsonl")
    bpe = str(tmp_path / "bpe")
    assert convert(["tokenizer", "--input", corpus, "--vocab_size", "270", "--out", bpe]) == 0
    arguments = ["build", "--input", corpus, "--out", str(tmp_path / "tiny"), "--tokenizer", bpe]
    arguments += ["--seq_len", "16", "--validation", "0.1", "--id_key", "id"]
    assert convert(arguments) == 0
    run = copy_of(half, tmp_path)
    said = refused(forked_runs, fit_arguments(tmp_path / "tiny", run, **REST), tmp_path)
    assert "streams[0].tokenizer" in said


def test_streams_in_another_order_are_refused(
    forked_runs: ForkedRuns, dataset: Path, tmp_path: Path
) -> None:
    other = rebuilt(dataset, tmp_path, edit=True)
    streams = [{"local": str(dataset), "name": "a"}, {"local": str(other), "name": "b"}]
    run = tmp_path / "run"
    changes = {**HALF, "stop__max_steps": 5}
    first = fit_arguments(dataset, run, **changes, data__train=streams)
    assert forked_runs.run(first, tmp_path / "log").code == 0
    swapped = fit_arguments(dataset, run, **REST, data__train=streams[::-1])
    said = refused(forked_runs, swapped, tmp_path)
    assert "streams[0].index" in said
    assert "streams[1].index" in said


def test_a_moved_dataset_and_other_topology_are_no_change(
    forked_runs: ForkedRuns, dataset: Path, half: Path, full: Path, tmp_path: Path
) -> None:
    moved = tmp_path / "elsewhere"
    shutil.copytree(dataset, moved)
    run = copy_of(half, tmp_path)
    changes = {"batch__micro_size": 2, "data__workers": 1, "checkpoint__every": 9}
    arguments = fit_arguments(moved, run, **{**REST, **changes})
    done = forked_runs.run(arguments, tmp_path / "log")
    assert done.code == 0, done.log
    assert end_of(run).digest == end_of(full).digest


def test_an_accepted_change_of_data_begins_a_phase_and_the_digest_goes_on(
    forked_runs: ForkedRuns, dataset: Path, half: Path, tmp_path: Path
) -> None:
    other = rebuilt(dataset, tmp_path, edit=True)
    run = copy_of(half, tmp_path)
    arguments = fit_arguments(other, run, **REST, run__on_data_change="accept")
    done = forked_runs.run(arguments, tmp_path / "log")
    assert done.code == 0, done.log
    assert "accepted: streams[0].index" in done.log
    numbers = steps(run)
    assert (numbers[20]["epoch"], numbers[21]["epoch"]) == (1, 0)
    assert numbers[21]["sample_in_epoch"] == 8
    state = json.loads((run / "checkpoints" / "step-00000040" / "state.json").read_text())
    assert [phase["data_step"] for phase in state["phases"]] == [0, 20]
    assert state["phases"][1]["from"] == state["phases"][0]["fingerprint"]
    replayed = forked_runs.run(["replay", str(run)], tmp_path / "replay.log")
    assert replayed.code == 0, replayed.log


SETTINGS = {
    "learning rate": ({"optimizer__lr": 0.002}, "optimizer.lr is 0.01 -> 0.002"),
    "schedule": ({"schedule__warmup": 4}, "schedule.warmup_steps is 3 -> 4"),
    "weight decay": ({"optimizer__weight_decay": 0.0}, "optimizer.weight_decay is 0.1 -> 0.0"),
    "seed": ({"run__seed": 4, "data__shuffle__seed": 3}, "seed is 3 -> 4"),
}


@pytest.mark.parametrize(("changes", "line"), SETTINGS.values(), ids=SETTINGS.keys())
def test_other_training_settings_are_refused_unless_accepted(
    changes: dict[str, object],
    line: str,
    forked_runs: ForkedRuns,
    dataset: Path,
    half: Path,
    tmp_path: Path,
) -> None:
    run = copy_of(half, tmp_path)
    arguments = fit_arguments(dataset, run, **{**REST, **changes})
    said = refused(forked_runs, arguments, tmp_path)
    assert line in said
    assert "--run.on_config_change accept" in said
    done = forked_runs.run([*arguments, "--run.on_config_change", "accept"], tmp_path / "log2")
    assert done.code == 0, done.log
    assert end_of(run).step == 40


def test_another_model_is_never_accepted(
    forked_runs: ForkedRuns, dataset: Path, half: Path, tmp_path: Path
) -> None:
    run = copy_of(half, tmp_path)
    wider = {"n_layer": 2, "n_head": 2, "n_embd": 32, "block_size": 16, "vocab_size": 257}
    arguments = fit_arguments(dataset, run, **REST, model__config=wider)
    accepting = ["--run.on_data_change", "accept", "--run.on_config_change", "accept"]
    said = refused(forked_runs, [*arguments, *accepting], tmp_path)
    assert "may not change within a run" in said


def test_each_further_start_writes_its_own_configuration(half: Path, full: Path) -> None:
    assert (half / "config.yaml").exists()
    assert (full / "config.1.yaml").exists()
    assert (half / "config.yaml").read_bytes() == (full / "config.yaml").read_bytes()


def test_a_longer_run_of_an_open_schedule_is_the_run_that_was_long_from_the_start(
    forked_runs: ForkedRuns, dataset: Path, full: Path, tmp_path: Path
) -> None:
    arguments = fit_arguments(dataset, tmp_path / "run", **REST, evaluation__at_end=True)
    assert forked_runs.run(arguments, tmp_path / "log").code == 0
    assert steps(tmp_path / "run") == steps(full)
    assert end_of(tmp_path / "run").weights == end_of(full).weights


def test_a_run_whose_checkpoints_are_all_damaged_is_not_begun_again_over_them(
    forked_runs: ForkedRuns, dataset: Path, half: Path, tmp_path: Path
) -> None:
    run = copy_of(half, tmp_path)
    receipts = sorted((run / "checkpoints").glob("step-*/receipt.json"))
    for receipt in receipts:
        receipt.write_text("{")
    before = (run / "metrics.jsonl").read_bytes()
    done = forked_runs.run(fit_arguments(dataset, run, **REST), tmp_path / "log")
    assert done.code == 1
    assert f"none of the {len(receipts)} checkpoints (the newest: step 20) is whole" in done.log
    assert (run / "metrics.jsonl").read_bytes() == before


def test_a_run_begun_again_without_its_checkpoints_says_so(
    forked_runs: ForkedRuns, dataset: Path, half: Path, tmp_path: Path
) -> None:
    run = copy_of(half, tmp_path)
    shutil.rmtree(run / "checkpoints")
    done = forked_runs.run(fit_arguments(dataset, run, **REST), tmp_path / "log")
    assert done.code == 0
    assert "begun before, and without a checkpoint: starting at step 0" in done.log


def test_a_tokenizer_that_is_not_the_datas_is_refused(
    forked_runs: ForkedRuns, dataset: Path, tmp_path: Path
) -> None:
    other = tmp_path / "tiny"
    shutil.copytree(dataset, other)
    file = other / "tokenizer" / "tokenizer.json"
    file.write_text(file.read_text().replace('"a"', '"QQ"', 1))
    said = refused(forked_runs, fit_arguments(other, tmp_path / "run"), tmp_path)
    assert "tokenizer.json" in said
    assert "the card says" in said
