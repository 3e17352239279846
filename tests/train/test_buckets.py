"""Data and run in a bucket: a cold cache, kills, another machine, faults on the way; over HTTP
against a real S3 server.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from forked_runs import ForkedRuns, Kill
from runs import end_of, recorded, steps
from servers.fault_proxy import FaultProxy
from servers.s3 import S3Server
from small import fit_arguments

from stream_pretrain.audit.compare_runs import read_final_state
from stream_pretrain.storage.store import open_store


def upload(dataset: Path, url: str) -> None:
    """Copy a dataset directory into the bucket."""
    store = open_store(url)
    for path in sorted(dataset.rglob("*")):
        if path.is_file():
            store.upload(path, path.relative_to(dataset).as_posix())


def bucket_arguments(bucket: str, machine: Path, **changes: object) -> list[str]:
    """A run in the bucket on data in the bucket; cache and staging are the machine's own."""
    settings: dict[str, object] = {
        "data__train": [{"remote": f"{bucket}/data"}],
        "data__cache__dir": machine / "cache",
        "checkpoint__staging": machine / "staging",
    }
    arguments = fit_arguments(Path("unused"), machine / "unused", **{**settings, **changes})
    place = arguments.index("--run.dir") + 1
    arguments[place] = f"{bucket}/run"
    return arguments


@pytest.fixture(scope="module")
def whole(forked_runs: ForkedRuns, dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run on local disks, which nobody interrupts."""
    root = tmp_path_factory.mktemp("whole")
    done = forked_runs.run(
        fit_arguments(dataset, root / "run"), root / "log", record=root / "run.samples"
    )
    assert done.code == 0, done.log
    return root / "run"


def metrics_of(bucket: str, place: Path) -> Path:
    """The bucket's metrics, as a local run directory that `runs.steps` reads."""
    place.mkdir()
    (place / "metrics.jsonl").write_bytes(open_store(f"{bucket}/run").read("metrics.jsonl"))
    return place


def final(bucket: str) -> tuple[int, str, str]:
    """Step, digest and weights of the newest checkpoint in the bucket."""
    from stream_pretrain.audit.compare_runs import hash_tensors
    from stream_pretrain.checkpoint.read_model import read_model_state

    tensors, state = read_model_state(open_store(f"{bucket}/run"))
    return state["step"], state["digest"], hash_tensors(tensors)


def test_killed_and_gone_on_elsewhere_with_cold_caches(
    forked_runs: ForkedRuns, dataset: Path, whole: Path, s3: S3Server, bucket: str, tmp_path: Path
) -> None:
    upload(dataset, f"{bucket}/data")
    environment = {"S3_ENDPOINT_URL": s3.endpoint}
    kills = [Kill("updated", 8), Kill("fsync", 9), Kill("counted", 12), None]
    codes = []
    for number, kill in enumerate(kills):
        machine = tmp_path / f"machine-{number}"
        machine.mkdir()
        arguments = bucket_arguments(bucket, machine, data__workers=number % 2)
        # The other machine sees a lease that nobody renews; here both are one host, so it is taken
        # over at once.
        done = forked_runs.run(
            arguments,
            tmp_path / "log",
            kill=kill,
            environment=environment,
            record=tmp_path / "samples",
        )
        codes.append(done.code)
        shutil.rmtree(machine)
    assert codes == [-9, -9, -9, 0], done.log
    end = end_of(whole)
    assert final(bucket) == (end.step, end.digest, end.weights)
    assert steps(metrics_of(bucket, tmp_path / "metrics")) == steps(whole)
    assert recorded(tmp_path / "samples") == recorded(whole.with_suffix(".samples"))
    assert not Path("s3:").exists()
    assert read_final_state(open_store(whole)).digest == end.digest


def test_connections_that_break_do_not_change_what_comes_out(
    forked_runs: ForkedRuns,
    dataset: Path,
    whole: Path,
    s3: S3Server,
    bucket: str,
    fault_proxy: FaultProxy,
    tmp_path: Path,
) -> None:
    upload(dataset, f"{bucket}/data")
    fault_proxy.fail("reset", "data/train", methods=("GET",), times=2)
    fault_proxy.fail("truncate", "data/train", methods=("GET",), times=2)
    fault_proxy.fail("status", "run/checkpoints", methods=("PUT", "POST"), times=4, status=503)
    fault_proxy.fail("lose_answer", "run/checkpoints", methods=("PUT",), times=3)
    fault_proxy.fail("drop", "run/metrics", times=2)
    done = forked_runs.run(
        bucket_arguments(bucket, tmp_path),
        tmp_path / "log",
        environment={"S3_ENDPOINT_URL": fault_proxy.endpoint},
    )
    assert done.code == 0, done.log
    end = end_of(whole)
    assert final(bucket) == (end.step, end.digest, end.weights)
    del s3


def test_a_bucket_that_is_not_there_is_named(
    forked_runs: ForkedRuns, s3: S3Server, bucket: str, dataset: Path, tmp_path: Path
) -> None:
    missing = f"{bucket}-missing"
    arguments = fit_arguments(dataset, tmp_path / "run")
    arguments[arguments.index("--run.dir") + 1] = f"{missing}/run"
    staging = ["--checkpoint.staging", str(tmp_path / "staging")]
    done = forked_runs.run(
        [*arguments, *staging], tmp_path / "log", environment={"S3_ENDPOINT_URL": s3.endpoint}
    )
    assert done.code == 1
    assert missing in done.log
    assert "Traceback" not in done.log
