"""A plan that cannot work is refused before anything starts, with values that would."""

from __future__ import annotations

from typing import Any

import pytest

from stream_pretrain.config.load_config import config_of
from stream_pretrain.config.sections import Config
from stream_pretrain.errors import ConfigError
from stream_pretrain.plan import Plan, plan
from stream_pretrain.schema import ModelFacts, StreamFacts, World

MODEL = ModelFacts(
    name="m",
    vocab_size=256,
    padded_vocab_size=256,
    block_size=64,
    parameters=1,
    parameters_without_embeddings=1,
    layers=1,
    flops_per_token=6.0,
)


def stream(name: str = "a", *, samples: int = 1000, shards: int = 10) -> StreamFacts:
    """Facts of a stream of rows of 65 ids."""
    return StreamFacts(
        name=name,
        location=name,
        samples=samples,
        row_ids=65,
        shards=shards,
        index_digest=name,
    )


def planned(
    world: World | None = None,
    streams: list[StreamFacts] | None = None,
    train: list[dict[str, Any]] | None = None,
    **sections: dict[str, Any],
) -> Plan:
    """One stream of a thousand samples and a global batch of 24, but for what is given."""
    values: dict[str, Any] = {
        "run": {"dir": "run"},
        "model": {"name": "pythia-14m"},
        "optimizer": {"lr": 1e-3},
        "stop": {"max_steps": 100},
        "batch": {"global_size": 24},
        "data": {"train": train or [{"local": "a"}], **sections.pop("data", {})},
        **sections,
    }
    config = config_of(Config, values)
    return plan(config, world or World(), streams or [stream()], {}, MODEL)


def nodes(count: int, ranks: int) -> World:
    """`count` machines with `ranks` processes each."""
    return World(world_size=count * ranks, local_world_size=ranks)


def test_three_nodes_eight_canonical_and_a_batch_of_twenty_four() -> None:
    found = planned(nodes(3, 1), data={"shuffle": {"canonical_nodes": 8}})
    assert found.order.canonical_nodes == 8
    assert (found.micro_batch, found.micro_steps) == (8, 1)
    assert planned(nodes(3, 2), batch={"global_size": 24, "micro_size": 2}).micro_steps == 2


def test_the_order_does_not_depend_on_the_world() -> None:
    orders = {planned(nodes(n, r)).order for n in (1, 2, 3) for r in (1, 2, 4)}
    assert len(orders) == 1


REFUSED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "ranks that do not divide the batch": (
        {"world": nodes(5, 1)},
        ["batch.global_size is 24", "multiple of the 5 ranks", "nearest: 20 or 25"],
    ),
    "more ranks than samples in a step": (
        {"world": nodes(4, 8)},
        ["batch.global_size is 24", "multiple of the 32 ranks", "nearest: 32"],
    ),
    "micro-batch that does not divide a rank's share": (
        {"world": nodes(2, 1), "batch": {"global_size": 24, "micro_size": 8}},
        ["batch.micro_size is 8", "the 12 samples of a rank", "one of 1, 2, 3, 4, 6, 12"],
    ),
    "canonical nodes that do not divide the batch": (
        {"data": {"shuffle": {"canonical_nodes": 16}}},
        ["data.shuffle.canonical_nodes is 16", "batch.global_size 24", "1, 2, 3, 4, 6, 8, 12, 24"],
    ),
    "a batch of more samples than there are": (
        {"batch": {"global_size": 2048}},
        ["batch.global_size is 2048", "has 1000 samples", "lower it"],
    ),
    "canonical nodes that have no effect": (
        {"data": {"batching": "stratified", "shuffle": {"canonical_nodes": 8}}},
        ["data.shuffle.canonical_nodes is 8", "no effect with data.batching stratified"],
    ),
    "a block too small for a share of it": (
        {
            "streams": [stream("a"), stream("b")],
            "train": [{"local": "a", "weight": 5.0}, {"local": "b", "weight": 1.0}],
            "data": {"batching": "stratified", "shuffle": {"block_size": 8}},
        },
        ["data.shuffle.block_size is 8", "at least 13"],
    ),
    "a share of less than one sample a step": (
        {
            "streams": [stream("a"), stream("b")],
            "train": [{"local": "a", "weight": 99.0}, {"local": "b", "weight": 1.0}],
            "data": {"batching": "stratified"},
        },
        ["data.train is b", "share of a step is less than one sample"],
    ),
    "a share of less than one sample": (
        {
            "streams": [stream("a"), stream("b")],
            "train": [{"local": "a", "weight": 1e6}, {"local": "b", "weight": 1.0}],
        },
        ["data.train is b", "less than one sample", "raise its weight"],
    ),
}


@pytest.mark.parametrize(("settings", "expected"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_work_is_refused_with_values_that_would(
    settings: dict[str, Any], expected: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        planned(**settings)
    for words in expected:
        assert words in str(caught.value)


def test_all_faults_come_together() -> None:
    with pytest.raises(ConfigError, match="3 faults"):
        planned(
            nodes(5, 1),
            batch={"global_size": 24},
            data={"shuffle": {"canonical_nodes": 16}, "seq_len": 63},
        )


def test_a_stream_that_is_listed_twice_is_counted_twice() -> None:
    train = [{"local": "a"}, {"local": "b", "name": "b"}]
    found = planned(streams=[stream("a"), stream("a")], train=train)
    assert found.stream_keys == ("a", "a#2")
