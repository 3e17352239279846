"""A checkpoint is whole or absent: whatever is damaged is named and the one before it is used."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
import tiny_run as tiny

from stream_pretrain.checkpoint.read_model import read_model_files, read_model_state, read_state
from stream_pretrain.checkpoint.save import Checkpoints
from stream_pretrain.checkpoint.state import TrainState
from stream_pretrain.errors import CheckpointError
from stream_pretrain.storage.store import open_store

FILES = [
    "model/.metadata",
    "model/__0_0.distcp",
    "optimizer/.metadata",
    "optimizer/__0_0.distcp",
    "tensors.json",
    "state.json",
    "rng-00000.pt",
    "tokenizer/tokenizer.json",
    "model_config.yaml",
    "receipt.json",
]


def flip(path: Path) -> None:
    """Flip one bit of one byte, anywhere in the file."""
    data = bytearray(path.read_bytes())
    data[random.Random(path.name).randrange(len(data))] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.fixture
def run(tmp_path: Path, made: Path) -> Path:
    """A run with whole checkpoints of steps 2 and 4, to be damaged."""
    return Path(shutil.copytree(made, tmp_path / "run"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that the others are copies of."""
    tmp_path = tmp_path_factory.mktemp("made")
    extras = tmp_path / "extras"
    (extras / "tokenizer").mkdir(parents=True)
    (extras / "tokenizer/tokenizer.json").write_text('{"version": "1.0"}')
    (extras / "model_config.yaml").write_text("name: tiny\n")
    model = tiny.make_model()
    optimizer = tiny.make_optimizer(model)
    saver = tiny.checkpoints(tmp_path / "run", model, optimizer, extras=extras)
    state = TrainState()
    for _ in range(2):
        tiny.train(model, optimizer, state, 2)
        saver.save(state)
    saver.close()
    return tmp_path / "run"


def reader(run: Path, warnings: list[str], **config: object) -> Checkpoints:
    model = tiny.make_model(seed=3)
    return tiny.checkpoints(run, model, tiny.make_optimizer(model), warn=warnings.append, **config)


def test_every_file_of_a_checkpoint_is_tried(run: Path) -> None:
    newest = run / "checkpoints/step-00000004"
    there = {p.relative_to(newest).as_posix() for p in newest.rglob("*") if p.is_file()}
    assert there == set(FILES)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("harm", [flip, truncate, empty, Path.unlink])
def test_damaged_file_sends_the_run_to_the_older_checkpoint(
    run: Path, name: str, harm: object
) -> None:
    assert callable(harm)
    harm(run / "checkpoints/step-00000004" / name)
    warnings: list[str] = []
    found = reader(run, warnings).find("auto")
    assert found is not None
    assert found.step == 2
    if harm is Path.unlink and name == "receipt.json":
        assert warnings == []  # without a receipt there is no checkpoint
    else:
        (warning,) = warnings
        assert f"step-00000004/{name}" in warning
    assert read_model_state(open_store(run))[1]["step"] == 2
    if name == "state.json":
        assert read_state(open_store(run)).step == 2


def test_step_that_is_asked_for_and_damaged_is_refused(run: Path) -> None:
    flip(run / "checkpoints/step-00000004/model/__0_0.distcp")
    with pytest.raises(CheckpointError, match=r"step-00000004/model/__0_0\.distcp: xxh3-128 is"):
        reader(run, []).find(4)
    with pytest.raises(CheckpointError, match=r"xxh3-128 is"):
        read_model_state(open_store(run), 4)
    assert reader(run, []).find(2) is not None


def test_step_that_is_not_there_is_refused_with_those_that_are(run: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no checkpoint of step 3 \(there are: 2, 4\)"):
        reader(run, []).find(3)
    with pytest.raises(CheckpointError, match=r"no checkpoint of step 3 \(there are: 2, 4\)"):
        read_model_state(open_store(run), 3)


def test_never_refuses_a_run_that_has_checkpoints(run: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has checkpoints up to step 4, and run\.resume"):
        reader(run, []).find("never")
    assert reader(tmp_path / "new", []).find("never") is None
    assert reader(tmp_path / "new", []).find("auto") is None


def test_sizes_alone_are_compared_when_asked(run: Path) -> None:
    flip(run / "checkpoints/step-00000004/rng-00000.pt")
    found = reader(run, [], verify="sizes").find("auto")
    assert found is not None
    assert found.step == 4
    truncate(run / "checkpoints/step-00000004/rng-00000.pt")
    warnings: list[str] = []
    found = reader(run, warnings, verify="sizes").find("auto")
    assert found is not None
    assert found.step == 2
    assert "rng-00000.pt: has" in warnings[0]


def test_no_whole_checkpoint_is_no_checkpoint(run: Path) -> None:
    for step in (2, 4):
        empty(run / f"checkpoints/step-0000000{step}/state.json")
    warnings: list[str] = []
    assert reader(run, warnings).find("auto") is None
    assert len(warnings) == 2
    with pytest.raises(CheckpointError, match="no checkpoint is whole"):
        read_model_state(open_store(run))


def test_receipt_moved_to_another_step_is_refused(run: Path) -> None:
    text = (run / "checkpoints/step-00000002/receipt.json").read_text()
    (run / "checkpoints/step-00000004/receipt.json").write_text(text)
    warnings: list[str] = []
    found = reader(run, warnings).find("auto")
    assert found is not None
    assert found.step == 2
    assert "receipt of step 2" in warnings[0]


def test_damaged_newer_checkpoint_is_given_up_at_the_next_save(run: Path) -> None:
    flip(run / "checkpoints/step-00000004/model/__0_0.distcp")
    warnings: list[str] = []
    again = reader(run, warnings)
    found = again.find("auto")
    assert found is not None
    state = again.restore(found)
    tiny.train(again.model, again._optimizers[0], state, 1)
    again.save(state)
    again.close()
    assert again.saved_step == 3
    found = reader(run, warnings).find("auto")
    assert found is not None
    assert found.step == 3
    assert len(warnings) == 1, "the second start is not told again"
    assert (run / "checkpoints/step-00000004/abandoned.json").exists()
    tiny.train(again.model, again._optimizers[0], state, 2)
    again.save(state)
    again.close()
    assert again.saved_step == 5
    assert not (run / "checkpoints/step-00000004").exists(), "the new line has passed it"


def test_future_that_is_given_up_is_not_gone_back_to(run: Path) -> None:
    """Saves of the new line need not fall on the steps of the old one."""
    again = reader(run, [])
    found = again.find(2)
    assert found is not None
    state = again.restore(found)
    tiny.train(again.model, again._optimizers[0], state, 3)
    again.save(state)
    again.close()
    flip(run / "checkpoints/step-00000005/state.json")
    found = reader(run, []).find("auto")
    assert found is not None
    assert found.step == 2


def test_going_back_gives_up_the_future_only_with_the_next_save(run: Path) -> None:
    again = reader(run, [])
    found = again.find(2)
    assert found is not None
    state = again.restore(found)
    newest = reader(run, []).find("auto")
    assert newest is not None
    assert newest.step == 4
    tiny.train(again.model, again._optimizers[0], state, 1)
    again.save(state)
    again.close()
    newest = reader(run, []).find("auto")
    assert newest is not None
    assert newest.step == 3


def test_read_model_state_gives_whole_tied_tensors(run: Path) -> None:
    store = open_store(run)
    tensors, state = read_model_state(store)
    assert state["step"] == read_state(store).step == 4
    assert read_state(store, 2).data_step == 2
    names = ("tokenizer", "model_config.yaml")
    copies = read_model_files(store, 4, names, run.parent / "copies")
    assert sorted(path.name for path in copies) == ["model_config.yaml", "tokenizer.json"]
    model = tiny.make_model(seed=9)
    model.load_state_dict(tensors)
    assert tensors["head.weight"] is tensors["embedding.weight"]
    with pytest.raises(CheckpointError, match="no checkpoint"):
        read_model_state(open_store(run / "elsewhere"))
