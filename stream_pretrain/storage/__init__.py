"""One door to local paths and buckets: location -> store -> client, with failures named and retries
bounded.
"""
