"""Promises 2 and 3 over the order functions: thousands of cases, no process, no shard."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_pretrain.data.sample_order.epoch_order import epoch_steps, partitioned_ids, steps_of
from stream_pretrain.data.sample_order.position import EpochClock
from stream_pretrain.order import (
    Order,
    apportion,
    canonical_nodes,
    samples_drawn,
    shuffle_block,
    stratified_samples,
)

# Blocks smaller than shards are a poor shuffle but must be exact all the same.
pytestmark = pytest.mark.filterwarnings("ignore:Shuffle block size was smaller")

ALGORITHMS = ("py1br", "py1e", "py1s", "py2s", "naive")
BATCHES = (6, 8, 12, 24, 32, 48, 60, 64, 96)


def divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


@st.composite
def cases(draw: st.DrawFn) -> tuple[Order, list[list[int]]]:
    """An order and the shards it orders, at least one global batch of samples."""
    batch = draw(st.sampled_from(BATCHES))
    sizes = st.lists(st.integers(3, 60), min_size=1, max_size=5)
    shards = draw(st.lists(sizes, min_size=1, max_size=3))
    if sum(map(sum, shards)) < 2 * batch:
        shards[0].append(2 * batch)
    weights = draw(
        st.none()
        | st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=len(shards), max_size=len(shards))
    )
    order = Order(
        global_batch=batch,
        drawn=samples_drawn([sum(s) for s in shards], batch, weights=weights),
        canonical_nodes=draw(st.sampled_from([canonical_nodes(batch), 1, batch // 2])),
        shuffle=draw(st.booleans()),
        shuffle_algo=draw(st.sampled_from(ALGORITHMS)),
        shuffle_block_size=draw(st.sampled_from([8, 64, 1 << 18])),
        shuffle_seed=draw(st.integers(0, 1000)),
        sampling_granularity=draw(st.sampled_from([1, 10, 1000])),
    )
    return order, shards


@st.composite
def topologies(draw: st.DrawFn, batch: int) -> tuple[int, int, int, int]:
    """(nodes, ranks per node, workers, micro-batch) whose product without workers divides the
    batch.
    """
    nodes = draw(st.sampled_from([n for n in divisors(batch) if n <= 8]))
    ranks = draw(st.sampled_from([n for n in divisors(batch // nodes) if n <= 8]))
    micro = draw(st.sampled_from(divisors(batch // nodes // ranks)))
    return nodes, ranks, draw(st.integers(1, 4)), micro


@settings(max_examples=1500, deadline=None)
@given(st.data())
def test_every_topology_has_the_same_steps_from_any_step_of_any_epoch(data: st.DataObject) -> None:
    order, shards = data.draw(cases())
    epoch = data.draw(st.integers(0, 3))
    first = data.draw(st.integers(0, order.steps_per_epoch - 1))
    topology = data.draw(topologies(order.global_batch))
    expected = [np.sort(step) for step in epoch_steps(order, shards, epoch)][first:]
    dealt = partitioned_ids(order, shards, epoch, first_step=first, topology=topology)
    found = steps_of(dealt, order.global_batch)
    assert len(found) == len(expected)
    for left, right in zip(found, expected, strict=True):
        assert np.array_equal(left, right)


@settings(max_examples=500, deadline=None)
@given(st.data())
def test_without_weights_no_sample_comes_twice_and_less_than_a_batch_is_left_out(
    data: st.DataObject,
) -> None:
    order, shards = data.draw(cases())
    total = sum(map(sum, shards))
    drawn = samples_drawn([sum(s) for s in shards], order.global_batch)
    whole = Order(
        global_batch=order.global_batch,
        drawn=drawn,
        canonical_nodes=order.canonical_nodes,
        shuffle_algo=order.shuffle_algo,
        shuffle_seed=order.shuffle_seed,
        sampling_granularity=order.sampling_granularity,
    )
    seen = epoch_steps(whole, shards, data.draw(st.integers(0, 3))).ravel()
    assert len(np.unique(seen)) == len(seen)
    assert total - len(seen) < order.global_batch


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_with_weights_each_sample_comes_floor_or_ceil_times(data: st.DataObject) -> None:
    order, shards = data.draw(cases())
    seen = epoch_steps(order, shards, data.draw(st.integers(0, 3))).ravel()
    start = 0
    for sizes, drawn in zip(shards, order.drawn, strict=True):
        counts = np.bincount(seen, minlength=sum(map(sum, shards)))[start : start + sum(sizes)]
        assert counts.sum() == drawn
        times = Fraction(drawn, sum(sizes))
        allowed = {int(times), -(-times.numerator // times.denominator)}
        # The library shares a stream's samples among its shards by whole numbers, so that a shard
        # may round
        # the other way than the stream.
        assert set(counts.tolist()) <= allowed | {min(allowed) + 1}
        start += sum(sizes)


def test_other_samples_are_left_out_in_other_epochs() -> None:
    order = Order(global_batch=8, drawn=(56,), canonical_nodes=8)
    left_out = {
        tuple(sorted(set(range(63)) - set(epoch_steps(order, [[20, 43]], epoch).ravel().tolist())))
        for epoch in range(6)
    }
    assert len(left_out) > 1


def test_three_nodes_with_eight_canonical_nodes_and_a_batch_of_twenty_four() -> None:
    order = Order(global_batch=24, drawn=(240,), canonical_nodes=8)
    expected = [np.sort(step) for step in epoch_steps(order, [[100, 150]], 1)]
    for first in range(order.steps_per_epoch):
        dealt = partitioned_ids(order, [[100, 150]], 1, first_step=first, topology=(3, 2, 2, 2))
        for left, right in zip(steps_of(dealt, 24), expected[first:], strict=True):
            assert np.array_equal(left, right)


@settings(deadline=None)
@given(st.integers(1, 4096))
def test_canonical_nodes_are_the_largest_divisor_up_to_64(batch: int) -> None:
    assert canonical_nodes(batch) == max(n for n in divisors(batch) if n <= 64)


def test_a_batch_of_nothing_has_no_canonical_nodes() -> None:
    with pytest.raises(ValueError, match="at least 1, got 0"):
        canonical_nodes(0)


@settings(deadline=None)
@given(st.integers(0, 10**6), st.lists(st.integers(1, 1000), min_size=1, max_size=6))
def test_shares_are_exact_to_less_than_one(total: int, weights: list[int]) -> None:
    shares = [Fraction(weight) for weight in weights]
    given_out = apportion(total, shares)
    assert sum(given_out) == total
    for count, share in zip(given_out, shares, strict=True):
        assert abs(count - total * share / sum(shares)) < 1


def test_repeats_multiply_a_streams_samples() -> None:
    assert samples_drawn([100, 50], 10, repeats=[None, 3.0]) == (100, 150)
    assert samples_drawn([100, 50], 8, weights=[1.0, 3.0]) == (36, 108)
    assert samples_drawn([3], 8) == (0,)


def test_an_epochs_end_is_the_beginning_of_the_next() -> None:
    clock = EpochClock(global_batch=8, steps_per_epoch=15, num_canonical_nodes=8, shuffle_seed=3)
    assert clock.position(14).native() == {
        "epoch": 0,
        "sample_in_epoch": 112,
        "num_canonical_nodes": 8,
        "shuffle_seed": 3,
        "initial_physical_nodes": 1,
    }
    assert clock.position(15).native()["epoch"] == 1
    assert clock.position(15).native()["sample_in_epoch"] == 0
    assert clock.steps_left_in_epoch(14) == 1
    with pytest.raises(ValueError, match="at least 0"):
        clock.position(-1)


def test_a_block_is_a_share_of_the_window_and_at_least_four_shards() -> None:
    assert shuffle_block(64, [8184.0]) == 65536
    assert shuffle_block(64, [8184.0, 65000.5]) == 260002
    assert shuffle_block(1, [8184.0]) == 4194304


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_stratified_steps_have_exact_shares_on_every_topology(data: st.DataObject) -> None:
    order, shards = data.draw(cases())
    weighted = data.draw(st.booleans())
    drawn = stratified_samples(order.drawn, order.global_batch, None if weighted else order.drawn)
    if not all(drawn):
        return
    order = replace(order, drawn=drawn, batching_method="stratified", canonical_nodes=1)
    # Each stream has its share of the block, and the library needs two samples there.
    order = replace(order, shuffle_block_size=max(order.shuffle_block_size, 4 * order.global_batch))
    epoch = data.draw(st.integers(0, 3))
    first = data.draw(st.integers(0, order.steps_per_epoch - 1))
    expected = epoch_steps(order, shards, epoch)
    assert len(expected) == order.steps_per_epoch
    ends = np.cumsum([sum(sizes) for sizes in shards])
    for step in expected:
        streams = np.searchsorted(ends, step, "right")
        shares = np.bincount(streams, minlength=len(shards))
        assert (shares * order.steps_per_epoch).tolist() == list(drawn)
    topology = data.draw(topologies(order.global_batch))
    dealt = partitioned_ids(order, shards, epoch, first_step=first, topology=topology)
    found = steps_of(dealt, order.global_batch)
    assert len(found) == len(expected) - first
    for left, right in zip(found, expected[first:], strict=True):
        assert np.array_equal(left, np.sort(right))
    times = np.bincount(expected.ravel(), minlength=int(ends[-1]))
    start = 0
    for sizes, count in zip(shards, drawn, strict=True):
        exact = count / sum(sizes)
        here = times[start : start + sum(sizes)]
        assert int(exact) <= here.min()
        assert here.max() <= int(exact) + 1
        start += sum(sizes)


def test_the_stream_that_runs_short_ends_a_stratified_epoch() -> None:
    assert stratified_samples((61, 59), 8, (61, 59)) == (56, 56)
    assert stratified_samples((61, 59), 8, None) == (60, 60)
    assert stratified_samples((0, 0), 8, None) == (0, 0)
