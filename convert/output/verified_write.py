"""Writing one file for good. In: a store, a key, bytes. Out: nothing, or an error that names it."""

from __future__ import annotations

from stream_pretrain.errors import StorageError
from stream_pretrain.storage.store import Store


def write_verified(store: Store, key: str, data: bytes) -> None:
    """Write, then ask a bucket what it holds: a proxy may have cut the body short."""
    store.write(key, data)
    if store.is_local:
        return
    found = store.head(key)
    if found is None or found.size != len(data):
        size = "absent" if found is None else f"{found.size} bytes"
        raise StorageError(
            f"{store.url(key)}: {size} after writing {len(data)} bytes. Run the command again.",
            "damaged",
        )
