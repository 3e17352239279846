"""Several streams in one run: exact shares, what is reported of each, a mix that changes."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from forked_runs import ForkedRuns, Kill
from runs import assert_same, end_of, recorded, steps
from small import fit_arguments

from convert.cli import main as convert
from stream_pretrain.mds.index import read_index
from stream_pretrain.observe.jsonl import read_events
from stream_pretrain.order import samples_drawn
from stream_pretrain.storage.store import open_store

GLOBAL_BATCH, SEQ_LEN, END = 8, 16, 40
WEIGHTS = {"web": 1.0, "code": 2.0, "books": 0.5}
OPEN = {"schedule__kind": "constant", "stop__max_epochs": 20}


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Three datasets of different sizes and words, each of several shards."""
    root = tmp_path_factory.mktemp("streams")
    made = {}
    for name, documents, word in (("web", 40, "page"), ("code", 14, "loop"), ("books", 25, "tale")):
        source = root / f"{name}.jsonl"
        lines = [
            {"id": f"{n}", "text": f"{word} {n} {word * (n % 5)} " * 3} for n in range(documents)
        ]
        source.write_text("".join(json.dumps(line) + "\n" for line in lines))
        out = root / name
        arguments = ["build", "--input", str(source), "--out", str(out), "--tokenizer", "byte"]
        arguments += ["--seq_len", str(SEQ_LEN), "--shard_size", "1024"]
        assert convert([*arguments, "--validation", "0.1"]) == 0
        made[name] = out
    return made


def mix(streams: dict[str, Path], **changes: Any) -> list[dict[str, Any]]:
    """`data.train` with the usual weights; `changes` names other ones."""
    return [
        {"local": str(place), "name": name, "weight": changes.get(name, WEIGHTS[name])}
        for name, place in streams.items()
    ]


def sizes(streams: dict[str, Path]) -> dict[str, int]:
    """Samples in each stream."""
    return {n: read_index(open_store(place / "train")).samples for n, place in streams.items()}


def step_events(run: Path) -> list[dict[str, Any]]:
    """The `step` lines of the metrics."""
    return [event for event in read_events(run / "metrics.jsonl") if event["event"] == "step"]


def stream_of(sample: int, counts: dict[str, int]) -> str:
    """The stream that a place in the joined streams belongs to."""
    for name, count in counts.items():
        if sample < count:
            return name
        sample -= count
    raise AssertionError("beyond the last stream")


@pytest.fixture(scope="module")
def whole(
    forked_runs: ForkedRuns, streams: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A run over three weighted streams that nobody interrupts: two epochs."""
    root = tmp_path_factory.mktemp("whole")
    arguments = fit_arguments(Path(), root / "run", data__train=mix(streams), stop__max_epochs=2)
    done = forked_runs.run(arguments, root / "log", record=root / "samples")
    assert done.code == 0, done.log
    return root / "run"


def assert_shares(record: Path, counts: dict[str, int], drawn: tuple[int, ...]) -> None:
    """In every epoch each stream gives exactly `drawn`, each sample floor or ceil times."""
    taken = recorded(record)
    per_epoch = sum(drawn) // GLOBAL_BATCH
    assert len(taken) % per_epoch == 0
    for first in range(1, len(taken), per_epoch):
        ids = [i for step in range(first, first + per_epoch) for i in taken[step]]
        shares = Counter(stream_of(i, counts) for i in ids)
        assert tuple(shares[name] for name in counts) == drawn
        times = Counter(ids)
        for place in range(sum(counts.values())):
            name = stream_of(place, counts)
            exact = drawn[list(counts).index(name)] / counts[name]
            assert int(exact) <= times[place] <= int(exact) + 1


def test_weights_give_exact_shares_of_every_epoch(whole: Path, streams: dict[str, Path]) -> None:
    counts = sizes(streams)
    drawn = samples_drawn([*counts.values()], GLOBAL_BATCH, weights=[*WEIGHTS.values()])
    assert drawn[1] == pytest.approx(2 * drawn[0], abs=2)
    assert_shares(whole.parent / "samples", counts, drawn)


def test_repeats_give_exact_shares_of_every_epoch(
    forked_runs: ForkedRuns, streams: dict[str, Path], tmp_path: Path
) -> None:
    repeats = {"web": 0.5, "code": 3.0, "books": None}
    train = [{"local": str(p), "name": n, "repeat": repeats[n]} for n, p in streams.items()]
    arguments = fit_arguments(Path(), tmp_path / "run", data__train=train, stop__max_epochs=2)
    done = forked_runs.run(arguments, tmp_path / "log", record=tmp_path / "samples")
    assert done.code == 0, done.log
    counts = sizes(streams)
    drawn = samples_drawn([*counts.values()], GLOBAL_BATCH, repeats=[*repeats.values()])
    assert drawn[1] == pytest.approx(3 * counts["code"], abs=3)
    assert_shares(tmp_path / "samples", counts, drawn)


def test_stratified_batching_gives_every_step_the_same_shares_also_after_a_kill(
    forked_runs: ForkedRuns, streams: dict[str, Path], tmp_path: Path
) -> None:
    counts, digests = sizes(streams), []
    for micro_size in (8, 2):
        place = tmp_path / str(micro_size)
        place.mkdir()
        arguments = fit_arguments(
            Path(),
            place / "run",
            data__train=mix(streams),
            data__batching="stratified",
            batch__micro_size=micro_size,
            stop__max_epochs=2,
        )
        if micro_size == 2:
            killed = forked_runs.run(
                arguments, place / "log", kill=Kill("counted", 27), record=place / "samples"
            )
            assert killed.code == -9
        done = forked_runs.run(arguments, place / "log", record=place / "samples")
        assert done.code == 0, done.log
        for ids in recorded(place / "samples").values():
            shares = Counter(stream_of(i, counts) for i in ids)
            assert [shares[name] for name in counts] == [2, 5, 1]
        digests.append(end_of(place / "run").digest)
    assert digests[0] == digests[1]


def test_metrics_have_tokens_epochs_and_loss_of_each_stream(
    whole: Path, streams: dict[str, Path]
) -> None:
    counts, taken = sizes(streams), recorded(whole.parent / "samples")
    seen: Counter[str] = Counter()
    for event in step_events(whole):
        here = Counter(stream_of(i, counts) for i in taken[event["step"]])
        seen += here
        assert event["stream_tokens"] == {name: seen[name] * SEQ_LEN for name in counts}
        assert sum(event["stream_tokens"].values()) == event["tokens"]
        assert event["stream_epochs"] == {n: seen[n] / counts[n] for n in counts}
        losses = event["stream_loss"]
        weighted = sum(losses[name] * share for name, share in here.items()) / GLOBAL_BATCH
        assert weighted == pytest.approx(event["loss"], abs=1e-9)
        for name in set(counts) - set(here):
            assert losses[name] is None or losses[name] != losses[name]


KILLS = {
    "in epoch 1": ([Kill("updated", 9)], {}),
    "in epoch 2, two workers": ([Kill("counted", 27)], {"data__workers": 2}),
    "three times": ([Kill("taken", 8), Kill("fsync", 9), Kill("updated", 7)], {}),
}


@pytest.mark.parametrize(("kills", "changes"), KILLS.values(), ids=KILLS.keys())
def test_a_killed_mixture_ends_as_if_never_killed(
    kills: list[Kill],
    changes: dict[str, object],
    forked_runs: ForkedRuns,
    streams: dict[str, Path],
    whole: Path,
    tmp_path: Path,
) -> None:
    settings = {"data__train": mix(streams), "stop__max_epochs": 2, **changes}
    arguments = fit_arguments(Path(), tmp_path / "run", **settings)
    for kill in kills:
        assert forked_runs.run(arguments, tmp_path / "log", kill=kill).code == -9
    done = forked_runs.run(arguments, tmp_path / "log")
    assert done.code == 0, done.log
    assert_same(tmp_path / "run", whole)
    by_stream = ("stream_tokens", "stream_epochs", "stream_loss")
    here, there = (
        [[e[k] for k in by_stream] for e in step_events(run)] for run in (tmp_path / "run", whole)
    )
    assert json.dumps(here) == json.dumps(there)


def test_two_ranks_count_what_one_does(
    forked_runs: ForkedRuns, streams: dict[str, Path], whole: Path, tmp_path: Path
) -> None:
    settings = {"data__train": mix(streams), "stop__max_epochs": 2, "compute__devices": 2}
    done = forked_runs.run(
        fit_arguments(Path(), tmp_path / "run", **settings), tmp_path / "log", ranks=2
    )
    assert done.codes == [0, 0], done.log
    for here, there in zip(step_events(tmp_path / "run"), step_events(whole), strict=True):
        for key in ("digest", "stream_tokens", "stream_epochs"):
            assert here[key] == there[key]
        assert here["stream_loss"] == pytest.approx(there["stream_loss"], abs=1e-4, nan_ok=True)


# ---- a mix that changes


@pytest.fixture(scope="module")
def half(
    forked_runs: ForkedRuns, streams: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Thirteen steps of the usual mix, with a schedule that has no end."""
    root = tmp_path_factory.mktemp("half")
    settings = {**OPEN, "data__train": mix(streams), "stop__max_steps": 13}
    done = forked_runs.run(fit_arguments(Path(), root / "run", **settings), root / "log")
    assert done.code == 0, done.log
    return root / "run"


def go_on(half: Path, place: Path, train: list[dict[str, Any]], *, accept: bool) -> list[str]:
    """Arguments that take a copy of `half` on to step END with another mix."""
    if not (place / "run").exists():
        shutil.copytree(half, place / "run")
    settings = {**OPEN, "data__train": train, "stop__max_steps": END}
    arguments = fit_arguments(Path(), place / "run", **settings)
    return [*arguments, "--run.on_data_change", "accept"] if accept else arguments


def test_other_weights_are_refused_field_by_field(
    forked_runs: ForkedRuns, half: Path, streams: dict[str, Path], tmp_path: Path
) -> None:
    counts = [*sizes(streams).values()]
    before = samples_drawn(counts, GLOBAL_BATCH, weights=[1.0, 2.0, 0.5])
    after = samples_drawn(counts, GLOBAL_BATCH, weights=[2.0, 2.0, 0.5])
    done = forked_runs.run(
        go_on(half, tmp_path, mix(streams, web=2.0), accept=False), tmp_path / "log"
    )
    assert done.code == 2
    for place in range(3):
        assert f"data streams[{place}].drawn is {before[place]} -> {after[place]}" in done.log
    assert "--run.on_data_change accept" in done.log


def test_another_order_of_streams_is_refused(
    forked_runs: ForkedRuns, half: Path, streams: dict[str, Path], tmp_path: Path
) -> None:
    done = forked_runs.run(
        go_on(half, tmp_path, mix(streams)[::-1], accept=False), tmp_path / "log"
    )
    assert done.code == 2
    assert "data streams[0].index is" in done.log
    assert "data streams[1].index is" not in done.log


def test_a_stream_left_out_is_refused_with_all_it_had(
    forked_runs: ForkedRuns, half: Path, streams: dict[str, Path], tmp_path: Path
) -> None:
    done = forked_runs.run(go_on(half, tmp_path, mix(streams)[:2], accept=False), tmp_path / "log")
    assert done.code == 2
    samples = sizes(streams)["books"]
    assert f"data streams[2].samples is {samples} -> None" in done.log


def test_a_renamed_stream_is_no_change_and_goes_on_being_counted(
    forked_runs: ForkedRuns, half: Path, streams: dict[str, Path], tmp_path: Path
) -> None:
    renamed = [{**stream, "name": stream["name"].upper()} for stream in mix(streams)]
    done = forked_runs.run(go_on(half, tmp_path, renamed, accept=False), tmp_path / "log")
    assert done.code == 0, done.log
    last = step_events(tmp_path / "run")[-1]
    assert set(last["stream_tokens"]) == {"WEB", "CODE", "BOOKS"}
    assert sum(last["stream_tokens"].values()) == last["tokens"]


@pytest.fixture(scope="module")
def remixed(
    forked_runs: ForkedRuns,
    half: Path,
    streams: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """`half` taken on to step END with other weights, in one go."""
    root = tmp_path_factory.mktemp("remixed")
    done = forked_runs.run(
        go_on(half, root, mix(streams, web=4.0), accept=True), root / "log", record=root / "samples"
    )
    assert done.code == 0, done.log
    assert "accepted: streams[0].drawn" in done.log
    return root / "run"


def state_of(run: Path, step: int) -> dict[str, Any]:
    """What the checkpoint of `step` holds."""
    found: dict[str, Any] = json.loads((run / f"checkpoints/step-{step:08}/state.json").read_text())
    return found


def test_an_accepted_mix_is_a_recorded_phase_and_the_digest_goes_on(
    forked_runs: ForkedRuns, half: Path, remixed: Path, tmp_path: Path
) -> None:
    state = state_of(remixed, END)
    assert [(p["phase"], p["step"], p["data_step"]) for p in state["phases"]] == [
        (0, 0, 0),
        (1, 13, 13),
    ]
    assert state["phases"][1]["from"] == state["phases"][0]["fingerprint"]
    numbers = steps(remixed)
    assert numbers[13]["digest"] == end_of(half).digest
    assert (numbers[14]["epoch"], numbers[14]["sample_in_epoch"]) == (0, GLOBAL_BATCH)
    replayed = forked_runs.run(["replay", str(remixed)], tmp_path / "log")
    assert replayed.code == 0, replayed.log
    assert end_of(remixed).digest in replayed.log


def test_a_new_phase_has_the_new_shares_and_counts_on(
    half: Path, remixed: Path, streams: dict[str, Path]
) -> None:
    counts = sizes(streams)
    taken = recorded(remixed.parent / "samples")
    drawn = samples_drawn([*counts.values()], GLOBAL_BATCH, weights=[4.0, 2.0, 0.5])
    assert min(taken) == 14
    ids = [i for step in range(14, 14 + sum(drawn) // GLOBAL_BATCH) for i in taken[step]]
    shares = Counter(stream_of(i, counts) for i in ids)
    assert tuple(shares[name] for name in counts) == drawn
    before, after = step_events(half)[-1], step_events(remixed)[-1]
    for name in counts:
        assert after["stream_tokens"][name] > before["stream_tokens"][name]
    assert sum(after["stream_tokens"].values()) == after["tokens"]


def test_kills_around_a_change_of_mix_leave_no_trace(
    forked_runs: ForkedRuns, half: Path, remixed: Path, streams: dict[str, Path], tmp_path: Path
) -> None:
    """Until the new phase has saved something it must be accepted again; then it is the run's."""
    arguments = go_on(half, tmp_path, mix(streams, web=4.0), accept=True)
    for kill in (Kill("taken", 1), Kill("updated", 2), Kill("saved", 1), Kill("counted", 6)):
        assert forked_runs.run(arguments, tmp_path / "log", kill=kill).code == -9
    for settings in (arguments, arguments[:-2]):
        done = forked_runs.run(settings, tmp_path / "log")
        assert done.code == 0, done.log
    assert_same(tmp_path / "run", remixed)
    assert [p["data_step"] for p in state_of(tmp_path / "run", END)["phases"]] == [0, 13]


def test_a_stream_that_comes_back_is_counted_from_where_it_was(
    forked_runs: ForkedRuns, half: Path, streams: dict[str, Path], tmp_path: Path
) -> None:
    without = go_on(half, tmp_path, mix(streams)[:2], accept=True)
    at = without.index("--stop.max_steps") + 1
    assert forked_runs.run([*without[:at], "20", *without[at + 1 :]], tmp_path / "log").code == 0
    middle = step_events(tmp_path / "run")[-1]
    assert set(middle["stream_tokens"]) == {"web", "code"}
    done = forked_runs.run(go_on(half, tmp_path, mix(streams), accept=True), tmp_path / "log")
    assert done.code == 0, done.log
    last = step_events(tmp_path / "run")[-1]
    assert sum(last["stream_tokens"].values()) == last["tokens"]
    assert len(state_of(tmp_path / "run", END)["phases"]) == 3
