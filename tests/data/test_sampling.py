"""What is drawn from each shard is what the library draws, to the sample."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from streaming.base import dataset
from streaming.base.sampling import get_sampling

from stream_pretrain.data.sample_order.sampling import quick_sampling, samples_from_shards


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.integers(1, 70), min_size=1, max_size=12),
    st.integers(0, 1500),
    st.integers(1, 40),
    st.integers(0, 1000),
    st.integers(0, 5),
    st.booleans(),
)
def test_the_quick_way_draws_what_the_library_draws(
    sizes: list[int], choose: int, granularity: int, seed: int, epoch: int, use_epoch: bool
) -> None:
    shards = np.array(sizes, np.int64)
    arguments = (choose, granularity, seed, epoch, use_epoch)
    found = samples_from_shards(shards, *arguments)
    assert found.dtype == np.int64
    assert np.array_equal(found, get_sampling(shards.copy(), *arguments))
    assert found.sum() == choose


def test_the_library_has_its_own_function_back_afterwards() -> None:
    library: Any = dataset
    with quick_sampling():
        assert library.get_sampling is samples_from_shards
    assert library.get_sampling is get_sampling
