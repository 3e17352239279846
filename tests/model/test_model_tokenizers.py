"""Pretrained weights must be of a tokenizer with the data's ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stream_pretrain.model.tokenizer_match import tokenizer_faults, tokens_by_id


def written(vocabulary: Any, added: dict[int, str] | None = None) -> bytes:
    extra = [{"id": number, "content": text} for number, text in (added or {}).items()]
    return json.dumps({"model": {"vocab": vocabulary}, "added_tokens": extra}).encode()


def test_ids_that_mean_other_tokens_are_a_fault(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(written({"a": 0, "b": 1, "c": 2}))
    (fault,) = tokenizer_faults(tmp_path, written({"a": 0, "c": 1, "b": 2}))
    assert fault.path == "model.init_from"
    assert "2 ids differ, such as 1 ('b' there, 'c' in the data)" in str(fault)
    assert f"--tokenizer {tmp_path}" in str(fault)


def test_another_spelling_of_the_same_ids_and_further_ones_are_none(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(written({"a": 0, "b": 1}))
    assert tokenizer_faults(tmp_path, written({"b": 1, "a": 0}, {2: "<end>"})) == []


def test_a_directory_without_a_tokenizer_says_nothing(tmp_path: Path) -> None:
    assert tokenizer_faults(tmp_path, written({"a": 0})) == []


def test_a_list_of_pieces_counts_from_zero() -> None:
    assert tokens_by_id(written([["a", -1.0], ["b", -2.0]])) == {0: "a", 1: "b"}
