"""Conversion is a function: the same bytes for any worker count, engine, number of kills."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from corpora import card_of, command, content_of, files_of, process, wait_until, write_jsonl
from servers.fault_proxy import FaultProxy, Rule

from stream_pretrain.errors import StorageError
from stream_pretrain.storage.local import LocalStore
from stream_pretrain.storage.store import open_store


def arguments(corpus: Path, out: object, *more: object) -> list[str]:
    """A job of many small parts in two splits, with a chain of parts from a compressed file."""
    words = ["build", "--input", corpus, "--out", out, "--tokenizer", "byte", "--seq_len", 32]
    words += ["--part_size", 3000, "--shard_size", 2000, "--validation", 0.2, "--quiet", *more]
    return [str(word) for word in words]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    write_jsonl(folder / "plain.jsonl", 120)
    write_jsonl(folder / "packed.jsonl.zst", 120, seed=1)
    return folder


@pytest.fixture(scope="module")
def reference(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("reference") / "out"
    done = process(*arguments(corpus, out, "--workers", 1))
    assert done.returncode == 0, done.stderr
    files = files_of(out)
    assert not any(name.startswith(".convert") for name in files)
    return files


def test_two_and_three_workers_write_the_bytes_of_one(
    corpus: Path, reference: dict[str, bytes], tmp_path: Path
) -> None:
    for workers in (2, 3):
        done = process(*arguments(corpus, tmp_path / f"{workers}", "--workers", workers))
        assert done.returncode == 0, done.stderr
        assert files_of(tmp_path / f"{workers}") == reference


class CutError(Exception):
    """The end of the process, as far as a test can play it."""


def test_a_stop_before_any_write_loses_nothing(
    corpus: Path,
    reference: dict[str, bytes],
    tmp_path: Path,
    capsys: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole_write = LocalStore.write
    left = 0

    def write(store: LocalStore, key: str, data: bytes, **options: Any) -> str:
        nonlocal left
        left -= 1
        if left < 0:
            raise CutError(key)
        return whole_write(store, key, data, **options)

    monkeypatch.setattr(LocalStore, "write", write)
    words = arguments(corpus, tmp_path / "out", "--workers", 1)
    stops = 0
    for stops in range(200):
        left = 7 + stops
        try:
            assert command(capsys, *words).code == 0
            break
        except CutError:
            assert not (tmp_path / "out/dataset.json").exists()
    assert 3 <= stops < 199
    assert files_of(tmp_path / "out") == reference


def count_receipts(out: Path) -> int:
    """Return how many parts of a conversion are finished."""
    return len(list((out / ".convert/receipts").glob("*.json")))


def kill_until_done(words: list[str], out: Path, kills: int, seed: int) -> int:
    """Kill at random moments, half of them between parts; return how often it was killed."""
    chance = random.Random(seed)
    command_line = [sys.executable, "-m", "convert.cli", *words]
    for number in range(kills):
        wanted = count_receipts(out) + chance.randint(1, 4)
        child = subprocess.Popen(command_line, stderr=subprocess.DEVNULL)
        if number % 2 or not out.is_absolute():  # a bucket's receipts cannot be watched
            time.sleep(chance.uniform(0.3, 2.5))
        else:
            wait_until(lambda: child.poll() is not None or count_receipts(out) >= wanted)  # noqa: B023
        child.send_signal(signal.SIGKILL)
        if child.wait() == 0:
            return number
        assert child.returncode == -signal.SIGKILL
    assert subprocess.run(command_line, check=False).returncode == 0
    return kills


def test_killed_jobs_end_with_the_same_bytes(
    corpus: Path, reference: dict[str, bytes], tmp_path: Path
) -> None:
    words = arguments(corpus, tmp_path / "out", "--workers", 2)
    assert kill_until_done(words, tmp_path / "out", 4, 0) >= 1
    assert files_of(tmp_path / "out") == reference


@pytest.mark.slow
def test_twenty_kills_end_with_the_same_bytes(
    corpus: Path, reference: dict[str, bytes], tmp_path: Path
) -> None:
    kills = 0
    for round_number in range(20):
        out = tmp_path / f"{round_number}"
        words = arguments(corpus, out, "--workers", 1 + round_number % 3)
        kills += kill_until_done(words, out, 6, round_number)
        assert files_of(out) == reference
        if kills >= 20:
            break
    assert kills >= 20


def test_a_terminated_job_says_that_it_goes_on(corpus: Path, tmp_path: Path) -> None:
    """Hundreds of parts are left when the signal arrives, so that it surely interrupts the job."""
    many_parts = ("--part_size", 100)
    whole, out = tmp_path / "whole", tmp_path / "out"
    assert process(*arguments(corpus, whole, *many_parts)).returncode == 0
    words = [sys.executable, "-m", "convert.cli", *arguments(corpus, out, *many_parts)]
    child = subprocess.Popen([*words, "--workers", "2"], stderr=subprocess.PIPE, text=True)
    wait_until(lambda: child.poll() is not None or count_receipts(out) > 0)
    child.send_signal(signal.SIGTERM)
    _, message = child.communicate(timeout=120)
    assert child.returncode == 75
    assert "run the same command again" in message
    assert count_receipts(out) > 0
    assert not (out / "dataset.json").exists()
    assert subprocess.run(words, check=False).returncode == 0
    assert files_of(out) == files_of(whole)


def test_an_error_in_one_part_ends_the_others_at_once(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in/long.jsonl.gz", 4000)
    (tmp_path / "in/bad.jsonl").write_text("{]\n")
    words = arguments(tmp_path / "in", tmp_path / "out", "--workers", 2)
    done = process(*words, timeout=60)
    assert done.returncode == 1
    assert "bad.jsonl, line 1: invalid JSON" in done.stderr
    assert len(list((tmp_path / "out/.convert/receipts").glob("*.json"))) < 150


def test_a_bucket_receives_the_same_bytes(
    corpus: Path, reference: dict[str, bytes], bucket: str, capsys: Any
) -> None:
    out = f"{bucket}/web"
    assert command(capsys, *arguments(corpus, out, "--workers", 1)).code == 0
    store = open_store(out)
    keys = [info.key for info in store.list() if info.key != "dataset.json"]
    assert {key: store.read(key) for key in keys} == reference
    assert command(capsys, "verify", out).code == 0
    again = command(capsys, *arguments(corpus, out, "--workers", 1))
    assert "nothing to do" in again.out


def test_processes_and_dropped_connections_change_nothing_in_a_bucket(
    corpus: Path, reference: dict[str, bytes], bucket: str, fault_proxy: FaultProxy
) -> None:
    fault_proxy.rules += [
        Rule(kind="drop", match="train", methods=("PUT",), times=3),
        Rule(kind="status", match="receipts", methods=("PUT",), times=3, status=503),
        Rule(kind="lose_answer", match="documents", times=2),
    ]
    out = f"{bucket}/web"
    done = process(*arguments(corpus, out, "--workers", 2), env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    store = open_store(out)
    keys = [info.key for info in store.list() if info.key != "dataset.json"]
    assert {key: store.read(key) for key in keys} == reference


@pytest.mark.slow
def test_kills_and_dropped_connections_change_nothing_in_a_bucket(
    corpus: Path, reference: dict[str, bytes], bucket: str, fault_proxy: FaultProxy
) -> None:
    fault_proxy.rules += [
        Rule(kind="drop", match="train", methods=("PUT",), times=9),
        Rule(kind="reset", match=".convert", methods=("GET",), times=5),
    ]
    out = f"{bucket}/web"
    assert kill_until_done(arguments(corpus, out, "--workers", 2), Path("-"), 8, 1) >= 1
    store = open_store(out)
    keys = [info.key for info in store.list() if info.key != "dataset.json"]
    assert {key: store.read(key) for key in keys} == reference


def test_inputs_are_read_from_a_bucket(
    corpus: Path, bucket: str, tmp_path: Path, capsys: Any
) -> None:
    store = open_store(f"{bucket}/corpus")
    for path in corpus.iterdir():
        store.write(path.name, path.read_bytes())
    here, there = tmp_path / "here", tmp_path / "there"
    assert command(capsys, *arguments(corpus, here, "--workers", 1)).code == 0
    for location in (f"{bucket}/corpus", f"{bucket}/corpus/*.jsonl*"):
        words = arguments(Path("x"), there, "--workers", 2, "--overwrite")
        words[2] = f"corpus={location}" if "*" in location else location
        done = process(*words, env=dict(os.environ))
        assert done.returncode == 0, done.stderr
    del done
    names = [source.name for source in card_of(there).sources]
    assert names == ["corpus/packed.jsonl.zst", "corpus/plain.jsonl"]
    assert content_of(there) != {}
    words[2] = f"{bucket}/corpus/plain.jsonl"
    assert command(capsys, *words, "--workers", 1).code == 0
    assert [source.name for source in card_of(there).sources] == ["plain.jsonl"]


@pytest.mark.slow
def test_ray_writes_the_same_bytes(
    corpus: Path, reference: dict[str, bytes], tmp_path: Path
) -> None:
    pytest.importorskip("ray")
    done = process(*arguments(corpus, tmp_path / "out", "--engine", "ray"))
    assert done.returncode == 0, done.stderr
    assert files_of(tmp_path / "out") == reference


@pytest.mark.slow
def test_a_bad_record_on_ray_is_the_users_message(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    (tmp_path / "c.jsonl").write_text("{]\n")
    done = process(*arguments(tmp_path / "c.jsonl", tmp_path / "out", "--engine", "ray"))
    assert done.returncode == 1
    assert "line 1: invalid JSON" in done.stderr
    words = arguments(tmp_path / "c.jsonl", tmp_path / "out", "--engine", "ray")
    done = process(*words, "--ray_address", "127.0.0.1:1", env={**os.environ, **RAY_IMPATIENT})
    assert done.returncode == 2
    assert "no cluster there" in done.stderr


RAY_IMPATIENT = {"RAY_gcs_server_request_timeout_seconds": "2", "RAY_NUM_REDIS_GET_RETRIES": "1"}


def test_ray_that_is_not_installed_is_named(
    corpus: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    run = command(capsys, *arguments(corpus, tmp_path / "out", "--engine", "ray"))
    assert run.code == 2
    assert "pip install 'stream-pretrain[ray]'" in run.err


def test_a_worker_that_dies_is_reported(corpus: Path, tmp_path: Path) -> None:
    words = arguments(corpus, tmp_path / "out", "--workers", 2, "--part_size", 300)
    child = subprocess.Popen(
        [sys.executable, "-m", "convert.cli", *words],
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: child.poll() is not None or count_receipts(tmp_path / "out") > 0)
    workers = grandchildren(child.pid)
    assert workers
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
    _, message = child.communicate(timeout=120)
    assert child.returncode == 1
    assert "a worker process died" in message
    assert "Traceback" not in message


def grandchildren(pid: int) -> list[int]:
    """Processes whose parent is a child of `pid`: the fork server's workers."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(stat.parent.name)] = int(fields[1])
    children = {child for child, parent in parents.items() if parent == pid}
    return [child for child, parent in parents.items() if parent in children]


def test_another_job_in_the_output_is_refused_with_the_differences(
    corpus: Path, tmp_path: Path, capsys: Any
) -> None:
    out = tmp_path / "out"
    assert command(capsys, *arguments(corpus, out, "--workers", 1)).code == 0
    before = files_of(out)
    other = command(capsys, *arguments(corpus, out, "--workers", 1, "--min_chars", 9))
    assert other.code == 2
    assert "settings.min_chars: 1 there, 9 now" in other.err
    assert "--overwrite" in other.err
    assert files_of(out) == before
    replaced = arguments(corpus, out, "--workers", 1, "--min_chars", 9, "--overwrite")
    assert command(capsys, *replaced).code == 0
    assert files_of(out) != before


def test_a_changed_input_is_not_mixed_into_a_stopped_job(tmp_path: Path, capsys: Any) -> None:
    path = write_jsonl(tmp_path / "c.jsonl", 60)
    path.write_bytes(path.read_bytes() + b"{]\n")
    assert command(capsys, *arguments(path, tmp_path / "out", "--workers", 1)).code == 1
    write_jsonl(path, 60)
    run = command(capsys, *arguments(path, tmp_path / "out", "--workers", 1))
    assert run.code == 2
    assert "inputs.c.jsonl" in run.err
    assert "a conversion that was stopped" in run.err


def test_files_that_are_no_dataset_are_never_removed(
    corpus: Path, tmp_path: Path, capsys: Any
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/thesis.tex").write_text("years of work")
    for more, words in (((), "holds files and no dataset"), (("--overwrite",), "leaves it alone")):
        run = command(capsys, *arguments(corpus, tmp_path / "out", "--workers", 1, *more))
        assert run.code == 2
        assert words in run.err
    assert (tmp_path / "out/thesis.tex").exists()


def test_a_second_converter_of_one_output_is_refused(
    corpus: Path, tmp_path: Path, capsys: Any
) -> None:
    from convert.jobs.staging import lock_output

    with lock_output(open_store(tmp_path / "out")):
        run = command(capsys, *arguments(corpus, tmp_path / "out", "--workers", 1))
    assert run.code == 1
    assert "another convert-mds writes to it" in run.err


def test_a_finished_file_that_was_lost_stops_the_publication(
    corpus: Path, tmp_path: Path, capsys: Any
) -> None:
    bad = tmp_path / "c.jsonl"
    bad.write_bytes((corpus / "plain.jsonl").read_bytes() + b"{]\n")
    assert command(capsys, *arguments(bad, tmp_path / "out", "--workers", 1)).code == 1
    next((tmp_path / "out/train").glob("*.zstd")).unlink()
    (tmp_path / "out/.convert/receipts").mkdir(exist_ok=True)
    skip = arguments(bad, tmp_path / "out", "--workers", 1)
    job = (tmp_path / "out/.convert/job.json").read_text()
    run = command(capsys, *skip, "--on_bad_record", "skip")
    assert run.code == 2
    assert job == (tmp_path / "out/.convert/job.json").read_text()


def test_a_receipt_without_its_file_is_an_error(tmp_path: Path) -> None:
    from convert.jobs.part_receipts import PartReceipt
    from convert.jobs.staging import check_files
    from stream_pretrain.errors import DataError

    receipt = PartReceipt(
        task=0, part=0, read=1, is_last=True, splits={}, sources={}, tallies={}, files={"a": 3}
    )
    store = open_store(tmp_path)
    with pytest.raises(DataError, match="absent, its receipt says 3 bytes"):
        check_files(store, [receipt])
    (tmp_path / "a").write_bytes(b"abcd")
    with pytest.raises(DataError, match="4 bytes, its receipt says 3 bytes"):
        check_files(store, [receipt])


def test_a_write_that_a_bucket_cut_short_is_an_error(bucket: str) -> None:
    from convert.jobs.part_writer import write_verified
    from stream_pretrain.storage.bucket import BucketStore

    class Lossy(BucketStore):
        def write(self, key: str, data: bytes, **options: Any) -> str:
            return super().write(key, data[:-1], **options)

    store = open_store(bucket)
    lossy = Lossy(store.parsed_location, store.config)
    with pytest.raises(StorageError, match="2 bytes after writing 3 bytes"):
        write_verified(lossy, "a", b"abc")
