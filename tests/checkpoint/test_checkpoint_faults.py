"""Saves that go wrong, and what they leave: an error that says where, and the checkpoint before."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny_run as tiny
import torch

from stream_pretrain.checkpoint import save_directory
from stream_pretrain.checkpoint.process_identity import this_process
from stream_pretrain.checkpoint.save import Checkpoints
from stream_pretrain.checkpoint.state import TrainState
from stream_pretrain.errors import CheckpointError, OwnerError, StorageError

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 200 KB."""
    mount = tmp_path / "small"
    mount.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(mount)], capture_output=True
    )
    if done.returncode != 0:
        pytest.skip("tmpfs cannot be mounted here")
    yield mount
    subprocess.run(["umount", "-l", str(mount)], check=True)


def opened(run: Path, warnings: list[str] | None = None, **options: object) -> Checkpoints:
    model = tiny.make_model(seed=5)
    totals = warnings if warnings is not None else []
    return tiny.checkpoints(
        run,
        model,
        tiny.make_optimizer(model),
        warn=totals.append,
        **options,  # type: ignore[arg-type]
    )


def advance(saver: Checkpoints, state: TrainState) -> None:
    tiny.train(saver.model, saver._optimizers[0], state, 1)
    saver.save(state)


@needs_root
def test_full_disk_is_an_error_and_the_older_checkpoint_stays(small_disk: Path) -> None:
    saver = opened(small_disk / "run")
    state = TrainState()
    advance(saver, state)
    saver.wait()
    (small_disk / "ballast").write_bytes(bytes(os.statvfs(small_disk).f_bavail * 4096 - 20480))
    advance(saver, state)
    with pytest.raises(StorageError, match="small/run") as caught:
        saver.wait()
    assert caught.value.reason == "full"
    assert not list((small_disk / "run/checkpoints").glob(".saving-*")), "no leftovers of ours"
    found = saver.find("auto")
    assert found is not None
    assert found.step == 1
    (small_disk / "ballast").unlink()
    saver.save(state)
    saver.close()
    assert saver.saved_step == 2, "the same step can be tried again"


def test_space_is_looked_at_before_writing(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"bytes are needed for a checkpoint, \d+ are free"):
        save_directory.require_space(tmp_path, 1 << 60)


@needs_root
def test_read_only_destination_is_an_error(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    saver = opened(small_disk / "run")
    advance(saver, TrainState())
    with pytest.raises(StorageError, match="saving step 1: Read-only file system") as caught:
        saver.wait()
    assert caught.value.reason == "denied"


def test_failure_behind_the_loop_is_raised_or_told_at_the_next_save(tmp_path: Path) -> None:
    def fail() -> None:
        raise StorageError("metrics: no answer", "unreachable")

    saver = opened(tmp_path / "stop", before_receipt=fail)
    state = TrainState()
    advance(saver, state)
    with pytest.raises(StorageError, match="metrics: no answer"):
        advance(saver, state)
    warnings: list[str] = []
    saver = opened(tmp_path / "go", warnings, before_receipt=fail, on_failure="continue")
    state = TrainState()
    advance(saver, state)
    advance(saver, state)
    [warning] = warnings
    assert warning.startswith("training goes on without that checkpoint: the checkpoint of step 1")
    assert warning.endswith("metrics: no answer")
    with pytest.raises(StorageError, match="metrics: no answer"):
        saver.close()
    assert saver.saved_step is None


def test_lost_ownership_stops_the_run_whatever_the_policy(tmp_path: Path) -> None:
    def lost() -> None:
        raise OwnerError("another one owns this run")

    saver = opened(tmp_path, before_receipt=lost, on_failure="continue")
    state = TrainState()
    advance(saver, state)
    with pytest.raises(OwnerError, match="another one owns this run"):
        advance(saver, state)
    assert not list(tmp_path.rglob("receipt.json"))


def test_surprise_behind_the_loop_names_run_and_step(tmp_path: Path) -> None:
    def surprise() -> None:
        raise KeyError("loss")

    saver = opened(tmp_path, before_receipt=surprise)
    advance(saver, TrainState())
    with pytest.raises(CheckpointError, match=r"saving step 1 failed \(KeyError: 'loss'\)"):
        saver.wait()


def test_save_is_of_its_step_whatever_training_does_meanwhile(tmp_path: Path) -> None:
    gate = threading.Event()
    saver = opened(tmp_path, before_receipt=lambda: None)
    saver._publisher.before_receipt = lambda: (gate.wait(20), None)[1]
    state = TrainState()
    tiny.train(saver.model, saver._optimizers[0], state, 1)
    saved = tiny.fingerprint(saver.model, saver._optimizers[0])
    saver.save(state)
    tiny.train(saver.model, saver._optimizers[0], state, 3)
    gate.set()
    saver.close()
    again = opened(tmp_path)
    found = again.find("auto")
    assert found is not None
    assert again.state_of(found).step == 1
    assert again.restore(found).step == 1
    assert tiny.fingerprint(again.model, again._optimizers[0]) == saved


def test_step_is_saved_once(tmp_path: Path) -> None:
    count = []
    saver = opened(tmp_path, before_receipt=lambda: count.append(1))
    state = TrainState()
    advance(saver, state)
    assert saver.save(state) == 0.0
    saver.wait()
    assert saver.save(state) == 0.0
    assert saver.longest_save_s > 0
    saver.close()
    again = opened(tmp_path, before_receipt=lambda: count.append(1))
    found = again.find("auto")
    assert found is not None
    assert again.save(again.restore(found)) == 0.0
    again.close()
    assert len(count) == 1


def test_synchronous_save_is_there_on_return(tmp_path: Path) -> None:
    saver = opened(tmp_path, asynchronous=False)
    state = TrainState()
    tiny.train(saver.model, saver._optimizers[0], state, 1)
    assert saver.save(state) > 0
    assert saver.saved_step == 1
    assert (tmp_path / "checkpoints/step-00000001/receipt.json").exists()


def test_retention_follows_the_configuration(tmp_path: Path) -> None:
    saver = opened(tmp_path, keep_last=1, keep_every=4, keep_best=True)
    state = TrainState()
    for step in range(1, 10):
        if step == 6:
            state.best = {"step": 6, "loss": 0.5}
        advance(saver, state)
    saver.close()
    assert saver._publisher.run.steps() == [4, 6, 8, 9]


def test_what_cannot_be_removed_fails_no_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    saver = opened(tmp_path, warnings, keep_last=1)
    state = TrainState()
    advance(saver, state)
    saver.wait()

    def refuse(step: int) -> None:
        raise StorageError(f"step {step}: may not be deleted", "denied")

    monkeypatch.setattr(saver._publisher.run, "remove", refuse)
    advance(saver, state)
    saver.close()
    assert saver.saved_step == 2
    assert warnings == ["old checkpoints could not be removed: step 1: may not be deleted"]


def test_leftovers_of_dead_saves_are_removed_and_those_of_live_ones_kept(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    me = this_process().token
    dead = subprocess.Popen(["true"])
    dead.wait()
    boot, namespace, _, start = me.split("-")
    parent = os.getppid()
    stat = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()
    names = {
        "dead": f".saving-step-00000007.{boot}-{namespace}-{dead.pid}-{start}",
        "alive": f".saving-step-00000007.{boot}-{namespace}-{parent}-{stat[19]}",
        "foreign": f".saving-step-00000007.{'3' * 32}-{namespace}-{parent}-1",
        "old foreign": f".saving-step-00000006.{'3' * 32}-{namespace}-{parent}-1",
        "own": f".saving-step-00000005.{me}",
        "deleting": ".deleting-step-00000004.17",
        "unfinished": "step-00000003",
    }
    for name in names.values():
        (checkpoints / name / "model").mkdir(parents=True)
    os.utime(checkpoints / names["old foreign"], (1, 1))
    saver = opened(tmp_path)
    advance(saver, TrainState())
    saver.close()
    left = {label for label, name in names.items() if (checkpoints / name).exists()}
    assert left == {"alive", "foreign", "own"}


def test_rewind_goes_back_while_training(tmp_path: Path) -> None:
    saver = opened(tmp_path)
    state = TrainState()
    seen = {}
    for _ in range(4):
        advance(saver, state)
        seen[state.step] = tiny.fingerprint(saver.model, saver._optimizers[0])
    found = saver.find("auto", at_most=3)
    assert found is not None
    assert found.step == 3
    spike = dict(state.spike, last=state.step)
    state.replace_with(saver.restore(found))
    assert tiny.fingerprint(saver.model, saver._optimizers[0]) == seen[3]
    state.spike = spike
    state.skip(4, 4)
    state.data_step += 1
    advance(saver, state)
    saver.close()
    again = opened(tmp_path)
    newest = again.find("auto")
    assert newest is not None
    restored = again.restore(newest)
    assert (restored.step, restored.data_step, restored.skipped) == (4, 5, [[4, 4]])
    assert restored.spike == {"last": 4}
    assert tiny.fingerprint(again.model, again._optimizers[0]) != seen[4]


def test_nothing_of_a_rank_is_copied_twice(tmp_path: Path) -> None:
    """Buffers of the first save are those of the later ones."""
    saver = opened(tmp_path)
    state = TrainState()
    advance(saver, state)
    saver.wait()
    before = {name: t.data_ptr() for name, t in saver._buffers._named.items()}
    advance(saver, state)
    saver.wait()
    assert {name: t.data_ptr() for name, t in saver._buffers._named.items()} == before
    assert not any(saver._buffers._spare.values())
    saver.close()
    assert not saver._buffers._named
    assert torch.is_grad_enabled()
