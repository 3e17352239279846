"""Values of settings that were renamed: old ones are accepted, and an old job is the same job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from corpora import Run, build, card_of, command, files_of

from convert.config import BuildConfig
from stream_pretrain.config.load_config import config_of
from stream_pretrain.storage.local import LocalStore

OLD = ("--packing", "flow", "--special_in_text", "act")
NEW = ("--packing", "concat", "--special_in_text", "parse")
OLD_SETTINGS = {"packing": "flow", "special_in_text": "act"}
NEW_SETTINGS = {"packing": "concat", "special_in_text": "parse"}


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "c.jsonl"
    texts = [f"document {i} <|endoftext|> of {'many ' * (i % 9)}words" for i in range(300)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def convert(capsys: Any, corpus: Path, out: Path, *flags: str) -> Run:
    return build(capsys, "--input", corpus, "--out", out, "--part_size", 2000, *flags)


def write_old_values(path: Path) -> None:
    """Make a saved job, or a card, what the release before the renaming wrote."""
    text = path.read_text()
    for name, old in OLD_SETTINGS.items():
        new = f'"{name}": "{NEW_SETTINGS[name]}"'
        assert new in text
        text = text.replace(new, f'"{name}": "{old}"')
    path.write_text(text)


class StopError(Exception):
    """The end of the process, as far as a test can play it."""


def stop_half_way(
    capsys: Any, corpus: Path, out: Path, flags: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> set[str]:
    """Stop a conversion after three finished parts; the keys of their receipts."""
    whole_write = LocalStore.write
    finished: set[str] = set()

    def write(store: LocalStore, key: str, data: bytes, **options: Any) -> str:
        if len(finished) == 3:
            raise StopError(key)
        if "/receipts/" in key:
            finished.add(key)
        return whole_write(store, key, data, **options)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "write", write)
        with pytest.raises(StopError):
            convert(capsys, corpus, out, *flags)
    assert {
        f".convert/receipts/{path.name}" for path in out.glob(".convert/receipts/*")
    } == finished
    return finished


def go_on(
    capsys: Any, corpus: Path, out: Path, flags: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> set[str]:
    """Finish a conversion; the keys of the receipts that it wrote."""
    whole_write = LocalStore.write
    written: set[str] = set()

    def write(store: LocalStore, key: str, data: bytes, **options: Any) -> str:
        if "/receipts/" in key:
            written.add(key)
        return whole_write(store, key, data, **options)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "write", write)
        run = convert(capsys, corpus, out, *flags)
    assert run.code == 0, run.err
    return written


def test_an_old_value_is_accepted_with_one_line_that_names_the_new_one(
    corpus: Path, tmp_path: Path, capsys: Any
) -> None:
    run = convert(capsys, corpus, tmp_path / "old", *OLD)
    assert run.code == 0
    lines = [line for line in run.err.splitlines() if line.startswith("warning: ")]
    assert sorted(lines) == [
        "warning: --packing flow is now called --packing concat; the next release accepts the new "
        "name only.",
        "warning: --special_in_text act is now called --special_in_text parse; the next release "
        "accepts the new name only.",
    ]
    run = convert(capsys, corpus, tmp_path / "new", *NEW)
    assert (run.code, run.err) == (0, "")
    assert files_of(tmp_path / "old") == files_of(tmp_path / "new")
    cards = [(tmp_path / name / "dataset.json").read_text() for name in ("old", "new")]
    assert cards[0] == cards[1]
    card = card_of(tmp_path / "old")
    assert {name: card.settings[name] for name in NEW_SETTINGS} == NEW_SETTINGS


def test_an_old_value_in_a_file_or_a_script_is_accepted(
    corpus: Path, tmp_path: Path, capsys: Any
) -> None:
    (tmp_path / "c.yaml").write_text("packing: flow\n")
    run = convert(capsys, corpus, tmp_path / "out", "--config", str(tmp_path / "c.yaml"))
    assert run.code == 0
    assert run.err.count("--packing concat") == 1
    values = {"input": [str(corpus)], "out": "x", "tokenizer": "byte", "seq_len": 8}
    with pytest.warns(FutureWarning, match="--packing flow is now called --packing concat"):
        config = config_of(BuildConfig, {**values, "packing": "flow"})
    assert config.packing == "concat"


def test_a_value_that_never_was_is_refused(corpus: Path, tmp_path: Path, capsys: Any) -> None:
    run = convert(capsys, corpus, tmp_path / "out", "--packing", "act")
    assert run.code == 2
    assert "packing is 'act': must be concat or best_fit" in run.err


@pytest.mark.parametrize(("first", "then"), [(OLD, NEW), (NEW, OLD)])
@pytest.mark.parametrize("saved_by_old_release", [True, False])
def test_a_stopped_conversion_goes_on_under_either_name(
    first: tuple[str, ...],
    then: tuple[str, ...],
    saved_by_old_release: bool,
    corpus: Path,
    tmp_path: Path,
    capsys: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert convert(capsys, corpus, tmp_path / "whole", *NEW).code == 0
    out = tmp_path / "out"
    finished = stop_half_way(capsys, corpus, out, first, monkeypatch)
    if saved_by_old_release:
        write_old_values(out / ".convert/job.json")
    written = go_on(capsys, corpus, out, then, monkeypatch)
    assert written
    assert written.isdisjoint(finished)
    assert files_of(out) == files_of(tmp_path / "whole")
    assert card_of(out).content_hash == card_of(tmp_path / "whole").content_hash


@pytest.mark.parametrize("flags", [OLD, NEW])
def test_a_dataset_of_the_old_release_is_the_same_job(
    flags: tuple[str, ...], corpus: Path, tmp_path: Path, capsys: Any
) -> None:
    out = tmp_path / "out"
    assert convert(capsys, corpus, out, *NEW).code == 0
    write_old_values(out / "dataset.json")
    before = (out / "dataset.json").read_bytes()
    again = convert(capsys, corpus, out, *flags)
    assert again.code == 0
    assert "nothing to do" in again.out
    assert (out / "dataset.json").read_bytes() == before
    assert command(capsys, "verify", out).code == 0
    other = convert(capsys, corpus, out, "--packing", "best_fit", "--special_in_text", "parse")
    assert other.code == 2
    assert 'settings.packing: "concat" there, "best_fit" now' in other.err
