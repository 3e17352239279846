"""The output while it is being made. In: a store and the job's identity. Out: what was done before.

`OUT/.convert/` holds `job.json` (what the job is), receipts and provenance of parts. A dataset is
never mixed: an output that belongs to another job is refused with the differences, or replaced.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from convert.jobs.conversion_job import STAGING
from convert.jobs.part_receipts import PartReceipt
from stream_pretrain.errors import ConfigError, DataError, OwnerError, StorageError
from stream_pretrain.schema import CARD_NAME, INDEX_NAME, Card
from stream_pretrain.storage.store import Store
from stream_pretrain.storage.transfer import TEMPORARY_SUFFIX
from stream_pretrain.system.file_lock import try_lock

JOB_KEY = f"{STAGING}/job.json"
LOCK_KEY = f"{STAGING}/lock"
RECEIPTS = f"{STAGING}/receipts"
READERS_AT_ONCE = 16
SHOWN_DIFFERENCES = 12


@dataclass(frozen=True, kw_only=True)
class PriorState:
    """What lies in the output: the card of a finished dataset, or receipts by task and part."""

    card: Card | None
    receipts: Mapping[int, Mapping[int, PartReceipt]]


def claim_output(
    store: Store,
    identity: Mapping[str, Any],
    contents: Callable[[], Mapping[str, Any]],
    *,
    overwrite: bool,
) -> PriorState:
    """Make the output this job's; `ConfigError` where it belongs to another.

    A stopped job's inputs are told by size and stamp, a finished one's by size and `contents`,
    which reads them.
    """
    if overwrite:
        clear(store)
    card = _card(store)
    if card is not None:
        made = card.notes.get("job", {})
        _check_same(store, _by_size(made), _by_size(identity), "a dataset")
        _check_same(store, made, {**identity, "inputs": contents()}, "a dataset")
        discard(store)  # left where the end came between the card and this
        return PriorState(card=card, receipts={})
    claimed = _read_json(store, JOB_KEY)
    if claimed is not None:
        _check_same(store, claimed, identity, "a conversion that was stopped")
        return PriorState(card=None, receipts=_receipts(store))
    if any(not info.key.startswith(f"{STAGING}/") for info in store.list()):
        raise ConfigError(
            f"--out {store.location}: holds files and no dataset. Choose an empty directory."
        )
    store.write(JOB_KEY, json.dumps(identity, sort_keys=True, indent=1).encode())
    return PriorState(card=None, receipts={})


def clear(store: Store) -> None:
    """Remove a dataset, or what a stopped conversion left; nothing else is ever removed."""
    names = {info.key for info in store.list()} - {LOCK_KEY}
    if names and CARD_NAME not in names and JOB_KEY not in names:
        raise ConfigError(
            f"--out {store.location}: holds files and no dataset, so --overwrite leaves it alone. "
            "Choose an empty directory."
        )
    last_first = [CARD_NAME, *(key for key in sorted(names) if key.endswith(INDEX_NAME))]
    for key in last_first:
        if key in names:
            store.delete(key)
    for key in sorted(names - set(last_first) - {JOB_KEY}):
        store.delete(key)
    store.delete(JOB_KEY)


def discard(store: Store) -> None:
    """Remove what only a conversion in progress needs."""
    for info in store.list(STAGING):
        if info.key != LOCK_KEY:
            store.delete(info.key)


def sweep(store: Store) -> None:
    """Remove temporary files that a killed process left in a directory."""
    if store.is_local:
        for path in store.path.rglob(f"*{TEMPORARY_SUFFIX}"):
            path.unlink(missing_ok=True)


def check_files(store: Store, receipts: Sequence[PartReceipt]) -> None:
    """Every file that a receipt names must be there in its size."""
    sizes = {info.key: info.size for info in store.list()}
    for receipt in receipts:
        for key, size in receipt.files.items():
            if sizes.get(key) != size:
                found = f"{sizes[key]} bytes" if key in sizes else "absent"
                raise DataError(
                    f"{store.url(key)}: {found}, its receipt says {size} bytes. Start again with "
                    "--overwrite."
                )


def check_out(store: Store) -> None:
    """An output is a directory, or nothing yet."""
    if not store.is_local:
        return
    for path in (store.path, *store.path.parents):
        if path.is_dir():
            return
        if path.exists():
            raise ConfigError(
                f"--out {store.location}: {path} is a file. Name a directory, which need not exist."
            )


@contextmanager
def owned(store: Store) -> Iterator[None]:
    """Hold a local output against a second converter; buckets have no such lock.

    Two converters of one job in one bucket write the same bytes; another job is refused by name.
    """
    if not store.is_local:
        yield
        return
    check_out(store)
    made = [path for path in (store.path, *store.path.parents) if not path.exists()]
    try:
        (store.path / STAGING).mkdir(parents=True, exist_ok=True)
        descriptor = try_lock(store.path / LOCK_KEY, mode=0o666)
    except OSError as error:
        raise StorageError(
            f"--out {store.location}: cannot be written ({error.strerror}). Choose another "
            "directory, or let this user write to it.",
            "denied",
        ) from error
    if descriptor is None:
        raise OwnerError(
            f"{store.location}: another convert-mds writes to it. Wait for it, or stop it."
        )
    try:
        yield
    finally:
        try:
            if not (store.path / JOB_KEY).exists():  # nothing staged: leave no trace
                shutil.rmtree(store.path / STAGING, ignore_errors=True)
                with suppress(OSError):  # the first that holds something
                    for path in made:
                        path.rmdir()
        finally:
            os.close(descriptor)


@contextmanager
def rollback_on_error(store: Store, *, parts_too: bool) -> Iterator[None]:
    """Remove what a conversion made that its input or its settings ended: all of it, or
    (not `parts_too`) only if no part was finished."""
    try:
        yield
    except (ConfigError, DataError):
        if parts_too or not store.list(RECEIPTS):
            clear(store)
            folders = [path for path in store.path.rglob("*") if path.is_dir()]
            for path in sorted(folders, reverse=True):
                if path != store.path / STAGING:
                    with suppress(OSError):
                        path.rmdir()
        raise


def _card(store: Store) -> Card | None:
    try:
        return Card.from_json(store.read(CARD_NAME), store.url(CARD_NAME))
    except StorageError as error:
        if error.reason == "absent":
            return None
        raise


def _read_json(store: Store, key: str) -> dict[str, Any] | None:
    if store.head(key) is None:
        return None
    plain: dict[str, Any] = json.loads(store.read(key))
    return plain


def _receipts(store: Store) -> dict[int, dict[int, PartReceipt]]:
    keys = [info.key for info in store.list(RECEIPTS)]
    with ThreadPoolExecutor(READERS_AT_ONCE) as pool:
        receipts = list(pool.map(lambda key: PartReceipt.from_json(store.read(key)), keys))
    by_task: dict[int, dict[int, PartReceipt]] = {}
    for receipt in receipts:
        by_task.setdefault(receipt.task, {})[receipt.part] = receipt
    return by_task


def _check_same(
    store: Store, found: Mapping[str, Any], wanted: Mapping[str, Any], what: str
) -> None:
    differences = list(_differences(found, wanted, ""))
    if not differences:
        return
    lines = "\n".join(f"  - {line}" for line in differences[:SHOWN_DIFFERENCES])
    more = len(differences) - SHOWN_DIFFERENCES
    rest = f"\n  - and {more} more" if more > 0 else ""
    raise ConfigError(
        f"--out {store.location}: holds {what} made otherwise; nothing was changed.\n"
        f"{lines}{rest}\nChoose another directory, give the same settings, or replace it with "
        "--overwrite."
    )


def _by_size(identity: Mapping[str, Any]) -> dict[str, Any]:
    inputs = identity.get("inputs", {})
    return {**identity, "inputs": {label: [size] for label, (size, *_) in inputs.items()}}


def _input_differences(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> Iterator[str]:
    for label in sorted({*found, *wanted}):
        if label not in found:
            yield f"inputs.{label}: was not there then"
        elif label not in wanted:
            yield f"inputs.{label}: is not there now"
        elif found[label] != wanted[label]:
            before, now = found[label][0], wanted[label][0]
            sizes = f"{before:,} bytes then, {now:,} now" if before != now else "of the same size"
            yield f"inputs.{label}: changed since ({sizes})"


def _differences(found: Any, wanted: Any, path: str) -> Iterator[str]:
    if path == "inputs" and isinstance(found, dict):
        yield from _input_differences(found, wanted)
    elif isinstance(found, dict) and isinstance(wanted, dict):
        for key in sorted({*found, *wanted}):
            below = f"{path}.{key}" if path else key
            yield from _differences(found.get(key), wanted.get(key), below)
    elif found != wanted:
        yield f"{path}: {json.dumps(found)} there, {json.dumps(wanted)} now"
