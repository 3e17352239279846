"""Give every stream a directory on this machine for its shards.

What goes in: the index of a stream and the `cache` section. What comes out: a `ShardSource` whose
directory is locked and scanned (`cache_setup`, `cache_directory`), and a warning or an error where
the disk or the limit is too small (`disk_space`). Nothing here downloads a shard.
"""
