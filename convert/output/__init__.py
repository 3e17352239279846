"""Pack token ids into samples and lay these out as MDS shards.

The ids of documents come in. `packing` and `best_fit` fill rows of seq_len + 1 ids and tell which
span of which document went where; `mds_shards` makes the bytes of a shard and its index entry,
`provenance` the tables of documents, and `content_hash` the hash of the rows. Nothing here knows of
tasks or workers, or writes to a store.
"""
