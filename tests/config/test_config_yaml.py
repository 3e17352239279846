"""YAML 1.2: what the scalars mean, and what a bad file says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_pretrain.config.yaml import dump_yaml, load_yaml, parse_document, parse_scalar
from stream_pretrain.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e9", 1e9),
        ("3e-4", 3e-4),
        ("1_000", 1000),
        ("no", "no"),
        ("off", "off"),
        ("1:30:00", "1:30:00"),
        ("2024-01-01", "2024-01-01"),
        ("true", True),
        ("null", None),
        ("64Ki", "64Ki"),
        ("'1'", "1"),
        ("=", "="),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text: str, value: object) -> None:
    found = parse_document(f"key: {text}", source="x").value["key"]
    assert found == value
    assert type(found) is type(value)
    if "'" not in text:
        assert parse_scalar(text) == value


def test_locations_name_the_line_of_each_key() -> None:
    locations = parse_document("a:\n  b: 1\n  c:\n    - d: 2\n", source="run.yaml").locations
    assert locations[("a", "b")] == "run.yaml:2"
    assert locations[("a", "c", "0", "d")] == "run.yaml:4"


def test_an_empty_file_is_nothing() -> None:
    assert parse_document("# only a comment\n", source="x").value is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [1", "x:1: not valid YAML"),
        ("a: 1\na: 2", "x:2 is a second 'a': leave one of them out"),
        ("a: !!python/object:os.system x", "tags and merge keys are not read"),
        ("a: &a {b: 1}\nc:\n  <<: *a", "x:3 is <<: a key must be plain text"),
        ("a: &a [*a]", "x:1: holds an alias of itself"),
        ("? [1, 2]\n: 3", "a list or mapping"),
        ("a: \x00", "not valid YAML"),
    ],
)
def test_a_bad_file_names_the_line(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_document(text, source="x")
    assert words in str(caught.value)


def test_a_missing_or_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: no such file"):
        load_yaml(tmp_path / "none.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"a: \xe9")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_yaml(tmp_path / "latin.yaml")


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**12), 10**12)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("ab 01-:#'\"\\né€{}[],&*!|>%@`", max_size=8)
    | st.sampled_from(
        ["1e9", "no", "null", "012", "1:30:00", "~", "true", "- x", "a: b", "2024-01-01"]
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text("abcxyz_", min_size=1), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.text("abcxyz_", min_size=1), plain, max_size=4))
def test_what_is_written_is_read_back(value: dict[str, Any]) -> None:
    assert parse_document(dump_yaml(value), source="x").value == value
