"""Read and write files in local directories and in buckets (S3, GCS, Azure).

`store.open_store` takes a path or URL and the `storage` section of the configuration, and returns a
`Store` of named objects. `location` parses the text, `local` and `bucket` implement `Store`,
`clients` makes the obstore client of a bucket, `reader` resumes a broken stream, and `transfer`
writes files that are whole or absent. `failures` turns every exception into a `StorageError` with a
reason, `retry` retries the transient ones, and `hashing` computes digests. The rest of the project
reaches buckets only through this folder.
"""
