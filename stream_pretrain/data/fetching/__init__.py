"""Bring shards to this machine, each one once per node, and verify them.

What goes in: a `ShardSource` and shard numbers. What comes out: verified raw shard files in the
cache directory, or a `ShardError`. `fetch_shard` fetches one shard, `shard_stream` shows a source
to streaming, `shard_fetching` coordinates the workers of a node, and `prefetch` fetches ahead of
the reader.
"""
