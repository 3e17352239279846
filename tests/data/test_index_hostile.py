"""An index may be careless or hostile: it is refused by name, and nothing is touched."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from servers.datasets import SEQ_LEN, SmallStream, small_stream

from stream_pretrain.errors import DataError
from stream_pretrain.mds.index import find_stream, parse_index, read_index
from stream_pretrain.schema import Card
from stream_pretrain.storage.store import open_store


@pytest.fixture
def stream(tmp_path: Path) -> SmallStream:
    return small_stream(tmp_path / "web", shards=3)


def refusal(stream: SmallStream, change: Callable[[Any], None]) -> str:
    index = stream.index()
    change(index)
    with pytest.raises(DataError) as failure:
        parse_index(json.dumps(index).encode(), "s3://b/web")
    assert str(failure.value).startswith("s3://b/web/index.json: ")
    return str(failure.value)


def set_at(*path: Any, value: Any) -> Callable[[Any], None]:
    def change(index: Any) -> None:
        for part in path[:-1]:
            index = index[part]
        index[path[-1]] = value

    return change


@pytest.mark.parametrize(
    "name",
    ["../../etc/passwd", "/etc/passwd", "a/../../b", "a//b", "./a", "..", "a/./b", "a/"],
)
@pytest.mark.parametrize("part", ["raw_data", "zip_data"])
def test_names_that_climb_out_of_the_cache_are_refused(
    stream: SmallStream, name: str, part: str
) -> None:
    text = refusal(stream, set_at("shards", 1, part, "basename", value=name))
    assert f"shard 1: {part}: {name!r} leads out of the dataset's directory" in text


@pytest.mark.parametrize("name", ["", None, 7, "a\0b", "a\\..\\b"])
def test_names_that_are_no_names_are_refused(stream: SmallStream, name: Any) -> None:
    text = refusal(stream, set_at("shards", 0, "raw_data", "basename", value=name))
    assert f"must be a file name, got {name!r}" in text


@pytest.mark.parametrize("name", ["index.json", "dataset.json", "sub/index.json", "x.tmp"])
def test_names_with_another_meaning_are_refused(stream: SmallStream, name: str) -> None:
    text = refusal(stream, set_at("shards", 0, "raw_data", "basename", value=name))
    assert "is not a name for a shard" in text


def test_a_name_in_a_directory_below_is_fine(stream: SmallStream) -> None:
    index = stream.index()
    index["shards"][0]["raw_data"]["basename"] = "part-0/shard.00000.mds"
    assert parse_index(json.dumps(index).encode(), "x").shards[0].raw.name.startswith("part-0/")


def test_a_name_listed_twice_is_refused(stream: SmallStream) -> None:
    same = stream.index()["shards"][0]["raw_data"]["basename"]
    text = refusal(stream, set_at("shards", 2, "raw_data", "basename", value=same))
    assert f"{same} is listed twice" in text


def test_pickled_columns_are_refused_by_name(stream: SmallStream) -> None:
    def change(index: Any) -> None:
        for shard in index["shards"]:
            shard["column_names"].append("extra")
            shard["column_encodings"].append("pkl")
            shard["column_sizes"].append(None)

    assert "column 'extra' is pickled" in refusal(stream, change)


def test_a_stream_without_tokens_says_which_columns_it_has(stream: SmallStream) -> None:
    def change(index: Any) -> None:
        for shard in index["shards"]:
            shard["column_names"] = ["text"]
            shard["column_encodings"] = ["str"]

    assert "no column 'tokens'; it has text (str)" in refusal(stream, change)


@pytest.mark.parametrize(
    "encoding", ["str", "json", "ndarray:float32:8", "ndarray:uint16:4,2", "jpeg"]
)
def test_tokens_that_are_not_rows_of_integers_are_refused(
    stream: SmallStream, encoding: str
) -> None:
    def change(index: Any) -> None:
        for shard in index["shards"]:
            shard["column_encodings"] = [encoding]

    text = refusal(stream, change)
    assert f"column 'tokens' is {encoding}; one row of integers" in text


@pytest.mark.parametrize("size", [0, 100, 1 << 40])
def test_sizes_that_cannot_be_are_refused(stream: SmallStream, size: int) -> None:
    text = refusal(stream, set_at("shards", 0, "raw_data", "bytes", value=size))
    assert f"cannot hold 20 samples in {size:,} bytes" in text


@pytest.mark.parametrize("value", [-1, 1.5, "9", True, None])
def test_counts_that_are_no_counts_are_refused(stream: SmallStream, value: Any) -> None:
    text = refusal(stream, set_at("shards", 0, "raw_data", "bytes", value=value))
    assert "must be a whole number" in text
    text = refusal(stream, set_at("shards", 0, "samples", value=value))
    assert "samples: must be a whole number of at least 0" in text


def test_a_stream_without_samples_is_refused(stream: SmallStream) -> None:
    def change(index: Any) -> None:
        for shard in index["shards"]:
            shard["samples"] = 0

    assert "lists no samples" in refusal(stream, change)


def test_a_column_size_that_its_encoding_contradicts_is_refused(stream: SmallStream) -> None:
    def change(index: Any) -> None:
        for shard in index["shards"]:
            shard["column_sizes"] = [4]

    assert "column_sizes says 4 bytes, ndarray:uint16:8 takes 16" in refusal(stream, change)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (set_at("version", value=1), "must be an MDS index of version 2, got 1"),
        (set_at("shards", value=[]), "lists no shards"),
        (set_at("shards", value="x"), "lists no shards"),
        (set_at("shards", 0, value=3), "shard 0: must be a mapping, got int"),
        (set_at("shards", 0, "format", value="json"), "format must be mds 2, got json 2"),
        (set_at("shards", 0, "raw_data", value=None), "raw_data: must be a mapping"),
        (set_at("shards", 0, "compression", value=None), "must be given together"),
        (set_at("shards", 0, "compression", value="xz"), "compression must be one of"),
        (set_at("shards", 0, "raw_data", "hashes", value={"xxh64": "../x"}), "hex digits"),
        (set_at("shards", 1, "column_names", value=["a"]), "Make them two streams"),
        (set_at("shards", 0, "column_sizes", value=None), "must be lists of one length"),
    ],
)
def test_anything_else_that_is_wrong_is_named(
    stream: SmallStream, change: Callable[[Any], None], words: str
) -> None:
    assert words in refusal(stream, change)


@pytest.mark.parametrize("text", [b"", b"{", b"[1]", b'"x"', b"[" * 100_000, b"\xff\xfe"])
def test_text_that_is_no_index_is_refused(text: bytes) -> None:
    with pytest.raises(DataError, match=r"index\.json: (not JSON|must be an MDS index)"):
        parse_index(text, "here")


def test_a_missing_index_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no index"):
        read_index(open_store(tmp_path))


def test_a_place_without_any_data_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"neither dataset\.json nor index\.json is there"):
        find_stream(open_store(tmp_path), "train")


def test_a_stream_is_found_in_a_dataset_beside_it_and_bare(tmp_path: Path) -> None:
    small_stream(tmp_path / "set" / "train", shards=1)
    card = Card(
        seq_len=SEQ_LEN, dtype="uint16", vocab_size=256, tokenizer_fingerprint="t", content_hash="c"
    )
    root = open_store(tmp_path / "set")
    assert find_stream(root, "train")[0].location == str(tmp_path / "set" / "train")
    (tmp_path / "set" / "dataset.json").write_text(card.to_json())
    store, found = find_stream(root, "train")
    assert found == card
    assert store.location == str(tmp_path / "set" / "train")
    assert find_stream(store, "train") == (store, None)


def test_a_card_that_contradicts_the_rows_is_refused(stream: SmallStream) -> None:
    card = Card(
        seq_len=100, dtype="uint16", vocab_size=9, tokenizer_fingerprint="t", content_hash="c"
    )
    with pytest.raises(DataError, match=r"rows hold 8 ids, dataset\.json says 100 \+ 1"):
        read_index(open_store(stream.directory), card)


def test_facts_are_sums_over_the_shards(stream: SmallStream) -> None:
    index = read_index(open_store(stream.directory))
    facts = index.facts("web")
    raw = [shard["raw_data"]["bytes"] for shard in stream.index()["shards"]]
    packed = [shard["zip_data"]["bytes"] for shard in stream.index()["shards"]]
    assert (facts.samples, facts.row_ids, facts.shards) == (60, SEQ_LEN + 1, 3)
    assert [shard.raw.size for shard in index.shards] == raw
    assert [shard.fetched.size for shard in index.shards] == packed
    assert all(shard.fetched.fastest_hash for shard in index.shards)


def test_the_digest_is_of_the_content_and_not_of_the_text(stream: SmallStream) -> None:
    text = (stream.directory / "index.json").read_bytes()
    spaced = json.dumps(json.loads(text), indent=3, sort_keys=False).encode()
    assert parse_index(text, "a").digest == parse_index(spaced, "b").digest
    index = stream.index()
    index["shards"].reverse()
    assert parse_index(json.dumps(index).encode(), "a").digest != parse_index(text, "a").digest


def test_an_index_without_hashes_is_read_and_its_shards_have_none(stream: SmallStream) -> None:
    index = stream.index()
    for shard in index["shards"]:
        shard["zip_data"]["hashes"] = {}
    shards = parse_index(json.dumps(index).encode(), "a").shards
    assert not any(shard.fetched.fastest_hash for shard in shards)
