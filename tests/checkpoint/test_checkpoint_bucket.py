"""Checkpoints in a bucket (a real S3 server over HTTP), with the local staging as a second tier."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import tiny_run as tiny
from servers.fault_proxy import FaultProxy

from stream_pretrain.checkpoint.read_model import read_model_state
from stream_pretrain.checkpoint.save import Checkpoints
from stream_pretrain.checkpoint.state import TrainState
from stream_pretrain.config.sections import StorageConfig
from stream_pretrain.errors import CheckpointError, StorageError
from stream_pretrain.storage.store import Store, open_store


def store(bucket: str, **config: object) -> Store:
    settings = {"retries": 2, "timeout": 5.0, **config}
    return open_store(f"{bucket}/run", StorageConfig.model_validate(settings))


def opened(
    run: Store, staging: Path, warnings: list[str] | None = None, **config: object
) -> Checkpoints:
    model = tiny.make_model(seed=5)
    totals = [] if warnings is None else warnings
    return tiny.checkpoints(
        run, model, tiny.make_optimizer(model), staging=staging, warn=totals.append, **config
    )


def advance(saver: Checkpoints, state: TrainState, steps: int = 1) -> None:
    tiny.train(saver.model, saver._optimizers[0], state, steps)
    saver.save(state)


def saved_run(run: Store, staging: Path, steps: int = 2) -> str:
    """A run with checkpoints of steps 1 to `steps`; the fingerprint of the last."""
    saver = opened(run, staging)
    assert saver.find("auto") is None
    state = TrainState()
    for _ in range(steps):
        advance(saver, state)
    saver.close()
    assert saver.saved_step == steps
    return tiny.fingerprint(saver.model, saver._optimizers[0])


def staged(staging: Path) -> Path:
    (directory,) = staging.iterdir()
    return directory / "checkpoints"


def restored(saver: Checkpoints) -> tuple[int, str]:
    found = saver.find("auto")
    assert found is not None
    state = saver.restore(found)
    saver.wait()
    return state.step, tiny.fingerprint(saver.model, saver._optimizers[0])


def test_run_goes_on_from_the_bucket_on_another_machine(bucket: str, tmp_path: Path) -> None:
    saved = saved_run(store(bucket), tmp_path / "first")
    assert restored(opened(store(bucket), tmp_path / "second")) == (2, saved)
    tensors, state = read_model_state(store(bucket))
    assert state["step"] == 2
    assert tensors["head.weight"] is tensors["embedding.weight"]
    assert not Path("s3:").exists()


def test_newest_on_the_same_machine_is_not_fetched(
    bucket: str, tmp_path: Path, fault_proxy: FaultProxy
) -> None:
    saved = saved_run(store(bucket), tmp_path)
    before = fault_proxy.count("distcp")
    assert restored(opened(store(bucket), tmp_path)) == (2, saved)
    assert fault_proxy.count("distcp") == before


def test_files_that_staging_lost_are_fetched_alone(
    bucket: str, tmp_path: Path, fault_proxy: FaultProxy
) -> None:
    saved = saved_run(store(bucket), tmp_path)
    (staged(tmp_path) / "step-00000002/model/__0_0.distcp").write_bytes(b"damaged")
    (staged(tmp_path) / "step-00000002/stray").write_bytes(b"x")
    before = fault_proxy.count("distcp")
    warnings: list[str] = []
    assert restored(opened(store(bucket), tmp_path, warnings)) == (2, saved)
    assert fault_proxy.count("optimizer/__0_0.distcp") < before
    assert "model/__0_0.distcp: has 7 bytes" in warnings[0]
    assert not (staged(tmp_path) / "step-00000002/stray").exists()


def test_staging_keeps_one_and_the_bucket_as_many_as_it_should(bucket: str, tmp_path: Path) -> None:
    saved_run(store(bucket), tmp_path, steps=5)
    assert [p.name for p in staged(tmp_path).glob("step-*")] == ["step-00000005"]
    kept = store(bucket).child("checkpoints").list_dirs()
    assert kept == ["step-00000003", "step-00000004", "step-00000005"]


def test_old_receipts_are_asked_for_once(
    bucket: str, tmp_path: Path, fault_proxy: FaultProxy
) -> None:
    saver = opened(store(bucket), tmp_path, keep_last=1, keep_every=1)
    saver.find("auto")
    state = TrainState()
    for _ in range(4):
        advance(saver, state)
    saver.close()
    assert saver._publisher.run.steps() == [1, 2, 3, 4]
    assert fault_proxy.count("step-00000001/receipt.json", "HEAD") <= 2


@pytest.mark.parametrize("name", ["model/__0_0.distcp", "state.json", "receipt.json"])
def test_damage_in_the_bucket_is_never_loaded(bucket: str, tmp_path: Path, name: str) -> None:
    run = store(bucket)
    saved_run(run, tmp_path / "a")
    key = f"checkpoints/step-00000002/{name}"
    data = bytearray(run.read(key))
    data[len(data) // 2] ^= 4
    run.write(key, bytes(data))
    warnings: list[str] = []
    step, _ = restored(opened(run, tmp_path / "b", warnings))
    assert step == 1
    assert f"step-00000002/{name}" in warnings[0]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ({"kind": "status", "status": 503, "code": "SlowDown"}, "unreachable"),
        ({"kind": "status", "status": 403, "code": "ExpiredToken"}, "denied"),
        ({"kind": "drop"}, "unreachable"),
    ],
)
def test_save_that_could_not_be_published_is_used_and_published_later(
    bucket: str, tmp_path: Path, fault_proxy: FaultProxy, fault: dict[str, Any], reason: str
) -> None:
    saver = opened(store(bucket, retries=1), tmp_path)
    saver.find("auto")
    state = TrainState()
    advance(saver, state)
    saver.wait()
    fault_proxy.fail(match="step-00000002", methods=("PUT", "POST"), **fault)
    advance(saver, state)
    with pytest.raises(StorageError, match="step-00000002") as caught:
        saver.close()
    assert caught.value.reason == reason
    saved = tiny.fingerprint(saver.model, saver._optimizers[0])
    assert saver.saved_step == 1
    fault_proxy.heal()
    again = opened(store(bucket), tmp_path)
    found = again.find("auto")
    assert found is not None
    assert (found.step, found.published) == (2, False)
    again.restore(found)
    again.wait()
    assert again.saved_step == 2
    assert restored(opened(store(bucket), tmp_path / "elsewhere")) == (2, saved)


def test_bucket_that_is_down_does_not_fill_the_staging_disk(
    bucket: str, tmp_path: Path, fault_proxy: FaultProxy
) -> None:
    saver = opened(store(bucket, retries=1), tmp_path, on_failure="continue", keep_last=2)
    saver.find("auto")
    fault_proxy.fail("status", "step-", methods=("PUT", "POST"))
    state = TrainState()
    for _ in range(4):
        advance(saver, state)
    with pytest.raises(StorageError):
        saver.close()
    left = sorted(p.name for p in staged(tmp_path).glob("step-*"))
    assert left == ["step-00000003", "step-00000004"]


def test_background_failure_is_raised_at_the_next_save_or_told(
    bucket: str, tmp_path: Path, fault_proxy: FaultProxy
) -> None:
    for policy in ("stop", "continue"):
        warnings: list[str] = []
        run = store(bucket, retries=1).child(policy)
        saver = opened(run, tmp_path, warnings, on_failure=policy)
        saver.find("auto")
        state = TrainState()
        rule = fault_proxy.fail("status", "step-00000001", methods=("PUT", "POST"))
        advance(saver, state)
        if policy == "stop":
            with pytest.raises(StorageError, match="step-00000001"):
                advance(saver, state)
        else:
            advance(saver, state)
            assert "training goes on without that checkpoint" in warnings[0]
        fault_proxy.heal()
        del rule
        advance(saver, state)
        saver.close()
        assert saver.saved_step == state.step


def test_staging_of_a_run_that_is_gone_is_not_used(bucket: str, tmp_path: Path) -> None:
    saved_run(store(bucket), tmp_path)
    store(bucket).delete_prefix("")
    warnings: list[str] = []
    assert opened(store(bucket), tmp_path, warnings).find("auto") is None
    assert "belongs to an earlier run" in warnings[0]


def test_upload_under_way_when_killed_leaves_no_checkpoint(bucket: str, tmp_path: Path) -> None:
    """What a kill leaves: files without a receipt. They are neither used nor left for ever."""
    run = store(bucket)
    saved_run(run, tmp_path / "a")
    run.write("checkpoints/step-00000007/state.json", b"{}")
    saver = opened(run, tmp_path / "b")
    found = saver.find("auto")
    assert found is not None
    assert found.step == 2
    state = saver.restore(found)
    advance(saver, state)
    saver.close()
    assert "step-00000007" not in run.child("checkpoints").list_dirs()


def test_bursts_of_errors_and_resets_are_survived(
    bucket: str, tmp_path: Path, fault_proxy: FaultProxy
) -> None:
    fault_proxy.fail("status", "step-", methods=("PUT", "POST"), times=2)
    fault_proxy.fail("reset", "step-", methods=("PUT", "POST"), times=2)
    saved = saved_run(store(bucket, retries=6), tmp_path / "a")
    fault_proxy.fail("status", "step-", methods=("GET",), times=2)
    assert restored(opened(store(bucket, retries=6), tmp_path / "b")) == (2, saved)


def test_upload_that_arrives_damaged_gets_no_receipt(
    bucket: str, tmp_path: Path, fault_proxy: FaultProxy
) -> None:
    saver = opened(store(bucket), tmp_path)
    saver.find("auto")
    fault_proxy.fail("corrupt", "step-00000001/model/__0_0.distcp", methods=("GET",))
    advance(saver, TrainState())
    with pytest.raises(StorageError, match=r"model/__0_0\.distcp: differs from what was sent"):
        saver.close()
    assert store(bucket).head("checkpoints/step-00000001/receipt.json") is None


def test_damage_in_staging_and_not_in_the_bucket_yet_is_passed_over(
    bucket: str, tmp_path: Path, fault_proxy: FaultProxy
) -> None:
    saver = opened(store(bucket, retries=1), tmp_path)
    saver.find("auto")
    state = TrainState()
    advance(saver, state)
    saver.wait()
    fault_proxy.fail("status", "step-00000002", methods=("PUT", "POST"))
    advance(saver, state)
    with pytest.raises(StorageError):
        saver.close()
    fault_proxy.heal()
    (staged(tmp_path) / "step-00000002/state.json").write_bytes(b"{}")
    warnings: list[str] = []
    assert restored(opened(store(bucket), tmp_path, warnings))[0] == 1
    assert "step-00000002/state.json" in warnings[0]


def test_missing_bucket_is_a_clear_error(s3: object, tmp_path: Path) -> None:
    del s3
    run = open_store("s3://no-such-bucket-here/run", StorageConfig(retries=1, timeout=5.0))
    with pytest.raises((StorageError, CheckpointError), match="no-such-bucket-here"):
        opened(run, tmp_path).find("auto")


def test_before_receipt_runs_before_each_receipt(bucket: str, tmp_path: Path) -> None:
    run = store(bucket)
    seen: list[tuple[bool, bool]] = []

    def before_receipt() -> None:
        local = list(tmp_path.rglob("step-00000001/receipt.json"))
        seen.append((bool(local), run.head("checkpoints/step-00000001/receipt.json") is not None))

    model = tiny.make_model()
    saver = tiny.checkpoints(
        run,
        model,
        tiny.make_optimizer(model),
        staging=tmp_path,
        before_receipt=before_receipt,
    )
    saver.find("auto")
    advance(saver, TrainState())
    saver.close()
    assert seen == [(False, False), (True, False)]


@pytest.mark.slow
def test_two_nodes_take_the_bucket_for_the_truth(bucket: str, tmp_path: Path) -> None:
    """Each node has its own staging; one receipt lists the files of both."""
    from test_checkpoint_ranks import run_stages, without_errors

    stage = {
        "run": f"{bucket}/run",
        "kind": "fsdp2",
        "ranks": 2,
        "local": 1,
        "steps": 2,
        "staging": str(tmp_path / "node{node}"),
    }
    first, second = without_errors(run_stages(tmp_path, {"two": [stage, stage]})["two"])
    assert second[0]["restored"] == first[0]["end"]
    receipt = json.loads(store(bucket).read("checkpoints/step-00000004/receipt.json"))
    names = {entry["name"] for entry in receipt["files"]}
    assert {"model/__0_0.distcp", "model/__1_0.distcp", "rng-00001.pt"} <= names
    for node in (0, 1):
        assert [p.name for p in staged(tmp_path / f"node{node}").iterdir() if p.is_dir()] == [
            "step-00000004"
        ], "a cache of one checkpoint"
    shutil.rmtree(tmp_path / "node1")
    (third,) = without_errors(run_stages(tmp_path, {"one": [{**stage, "ranks": 1}]})["one"])
    assert third[0]["restored"] == second[0]["end"]
