"""Decide which samples come in which step, and describe that order and what has been read of it.

What goes in: an `Order` and the sample counts of the shards. What comes out: sample ids by step
(`epoch_order`), the dataset state for a step (`position`), the fingerprint of everything that
decides the order (`fingerprint`) and the digest of the samples that were read (`digest`). No
module here opens a shard.
"""
