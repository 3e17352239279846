"""Read rows from the raw shards on this machine.

What goes in: sources and an `Order`. What comes out: `ShardDataset`, which yields (sample id, row)
pairs in that order (`shard_dataset`), from open shard files (`shard_files`). `infer_row_format`
finds the dtype and the length of rows where the index does not state them.
"""
