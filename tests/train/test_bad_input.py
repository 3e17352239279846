"""Promise 9: what cannot be trained on is refused before anything starts, all faults in one
message, each with a remedy.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from forked_runs import ForkedRuns
from small import fit_arguments


def refused(forked_runs: ForkedRuns, arguments: list[str], place: Path, *, code: int = 2) -> str:
    """The message of a start that must be refused; nothing may have been written."""
    done = forked_runs.run(arguments, place / "log")
    assert done.code == code, done.log
    assert "Traceback" not in done.log
    assert not (place / "run" / "metrics.jsonl").exists()
    return done.log


def test_ids_that_do_not_fit_the_models_vocabulary(
    forked_runs: ForkedRuns, dataset: Path, tmp_path: Path
) -> None:
    small = {"n_layer": 1, "n_head": 1, "n_embd": 8, "block_size": 16, "vocab_size": 100}
    small["padded_vocab_size"] = 128
    said = refused(
        forked_runs, fit_arguments(dataset, tmp_path / "run", model__config=small), tmp_path
    )
    assert "vocabulary of 257" in said
    assert "model.config.padded_vocab_size" in said


def test_a_seq_len_that_does_not_match_the_card(
    forked_runs: ForkedRuns, dataset: Path, tmp_path: Path
) -> None:
    said = refused(
        forked_runs, fit_arguments(dataset, tmp_path / "run", data__seq_len=32), tmp_path
    )
    assert "data.seq_len is 32" in said
    assert "rows of 17 ids, which means seq_len 16" in said


def test_a_context_longer_than_the_models(
    forked_runs: ForkedRuns, dataset: Path, tmp_path: Path
) -> None:
    short = {"n_layer": 1, "n_head": 1, "n_embd": 8, "block_size": 8, "vocab_size": 257}
    said = refused(
        forked_runs, fit_arguments(dataset, tmp_path / "run", model__config=short), tmp_path
    )
    assert "context of 8 tokens" in said
    assert "model.config.block_size" in said


def test_unknown_keys_all_at_once_with_the_nearest_names(
    forked_runs: ForkedRuns, dataset: Path, tmp_path: Path
) -> None:
    arguments = [*fit_arguments(dataset, tmp_path / "run"), "--bach.global_size", "8"]
    said = refused(forked_runs, [*arguments, "--optimizer.learning_rat", "1"], tmp_path)
    assert "2 faults" in said
    assert "batch" in said


def test_a_micro_batch_that_does_not_divide(
    forked_runs: ForkedRuns, dataset: Path, tmp_path: Path
) -> None:
    said = refused(
        forked_runs, fit_arguments(dataset, tmp_path / "run", batch__micro_size=3), tmp_path
    )
    assert "batch.micro_size is 3: must divide" in said


def test_a_global_batch_that_does_not_divide_among_the_ranks(
    forked_runs: ForkedRuns, dataset: Path, tmp_path: Path
) -> None:
    said = refused(
        forked_runs, fit_arguments(dataset, tmp_path / "run", compute__devices=3), tmp_path
    )
    assert "must be a multiple of the 3 ranks; nearest: 6 or 9" in said


def test_canonical_nodes_that_do_not_divide(
    forked_runs: ForkedRuns, dataset: Path, tmp_path: Path
) -> None:
    arguments = fit_arguments(dataset, tmp_path / "run", data__shuffle__canonical_nodes=3)
    assert "must divide batch.global_size 8" in refused(forked_runs, arguments, tmp_path)


def test_a_dataset_smaller_than_one_global_batch(
    forked_runs: ForkedRuns, dataset: Path, tmp_path: Path
) -> None:
    said = refused(
        forked_runs, fit_arguments(dataset, tmp_path / "run", batch__global_size=1024), tmp_path
    )
    assert "122 samples, less than one global batch" in said


def test_a_stream_that_is_not_there(forked_runs: ForkedRuns, dataset: Path, tmp_path: Path) -> None:
    missing = [{"local": str(tmp_path / "nothing")}]
    said = refused(
        forked_runs, fit_arguments(dataset, tmp_path / "run", data__train=missing), tmp_path
    )
    assert "neither dataset.json nor index.json" in said


def test_streams_of_different_tokenizers(
    forked_runs: ForkedRuns, dataset: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    (other / "train").mkdir(parents=True)
    card = json.loads((dataset / "dataset.json").read_text())
    card["tokenizer_fingerprint"] = "0" * 32
    (other / "dataset.json").write_text(json.dumps(card))
    for path in (dataset / "train").iterdir():
        if path.is_file():
            (other / "train" / path.name).write_bytes(path.read_bytes())
    streams = [{"local": str(dataset)}, {"local": str(other)}]
    validation = [{"local": str(dataset)}]
    arguments = fit_arguments(
        dataset, tmp_path / "run", data__train=streams, data__validation=validation
    )
    assert "different tokenizers" in refused(forked_runs, arguments, tmp_path)


def test_a_schedule_longer_than_the_run(
    forked_runs: ForkedRuns, dataset: Path, tmp_path: Path
) -> None:
    arguments = fit_arguments(dataset, tmp_path / "run", schedule__warmup=1000)
    assert "the run has 45 steps" in refused(forked_runs, arguments, tmp_path)


def test_a_run_directory_that_must_be_new(
    forked_runs: ForkedRuns, dataset: Path, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("{}\n")
    arguments = fit_arguments(dataset, tmp_path / "run", run__resume="never")
    assert "run.resume is never" in refused(forked_runs, arguments, tmp_path)


def test_a_step_that_has_no_checkpoint(
    forked_runs: ForkedRuns, dataset: Path, tmp_path: Path
) -> None:
    arguments = fit_arguments(dataset, tmp_path / "run", run__resume=7)
    assert "no checkpoint of step 7" in refused(forked_runs, arguments, tmp_path, code=1)


@pytest.mark.parametrize("accelerator", ["cuda"])
def test_a_device_that_is_not_there(
    accelerator: str, forked_runs: ForkedRuns, dataset: Path, tmp_path: Path
) -> None:
    arguments = fit_arguments(dataset, tmp_path / "run", compute__accelerator=accelerator)
    said = refused(forked_runs, arguments, tmp_path, code=2)
    assert "no GPU is visible" in said
