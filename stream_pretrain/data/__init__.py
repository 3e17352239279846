"""Shards in, device batches out, with the order known in advance.

index (what a stream holds) -> order (which samples, in which step) -> shards (rows, verified) ->
stream (batches)
position, fingerprint and digest say where a run stands, on what order, and what it has seen.
"""
