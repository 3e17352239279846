"""Manage the output directory while a conversion is in progress.

A store and the job's identity come in, and what was done earlier comes out. `OUT/.convert/` holds
`job.json` (the identity), and the receipts and provenance of finished parts. A dataset never mixes
two jobs: an output that belongs to another job is refused with the differences, or replaced.
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

from convert.config import with_renamed_values
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
    """What the output holds: the card of a finished dataset, or receipts by task and part."""

    card: Card | None
    receipts: Mapping[int, Mapping[int, PartReceipt]]


def claim_output(
    store: Store,
    identity: Mapping[str, Any],
    hash_inputs: Callable[[], Mapping[str, Any]],
    *,
    overwrite: bool,
) -> PriorState:
    """Claim the output for this job; raise `ConfigError` where it belongs to another.

    The inputs of a stopped job are compared by size and stamp, those of a finished one by size and
    by `hash_inputs`, which reads them.
    """
    if overwrite:
        remove_output(store)
    card = _card(store)
    if card is not None:
        saved = _with_renamed_values(card.notes.get("job", {}))
        _check_same(store, _by_size(saved), _by_size(identity), "a dataset")
        _check_same(store, saved, {**identity, "inputs": hash_inputs()}, "a dataset")
        remove_staging(store)  # left over where the process ended after it wrote the card
        return PriorState(card=card, receipts={})
    stopped = _read_json(store, JOB_KEY)
    if stopped is not None:
        _check_same(store, _with_renamed_values(stopped), identity, "a conversion that was stopped")
        return PriorState(card=None, receipts=_receipts(store))
    if any(not info.key.startswith(f"{STAGING}/") for info in store.list()):
        raise ConfigError(
            f"--out {store.location}: holds files and no dataset. Choose an empty directory."
        )
    store.write(JOB_KEY, json.dumps(identity, sort_keys=True, indent=1).encode())
    return PriorState(card=None, receipts={})


def remove_output(store: Store) -> None:
    """Remove a dataset, or the files of a stopped conversion; nothing else is ever removed."""
    names = {info.key for info in store.list()} - {LOCK_KEY}
    if names and CARD_NAME not in names and JOB_KEY not in names:
        raise ConfigError(
            f"--out {store.location}: holds files and no dataset, so --overwrite leaves it alone. "
            "Choose an empty directory."
        )
    marks_first = [CARD_NAME, *(key for key in sorted(names) if key.endswith(INDEX_NAME))]
    for key in marks_first:
        if key in names:
            store.delete(key)
    for key in sorted(names - set(marks_first) - {JOB_KEY}):
        store.delete(key)
    store.delete(JOB_KEY)


def remove_staging(store: Store) -> None:
    """Remove the files that only a conversion in progress needs."""
    for info in store.list(STAGING):
        if info.key != LOCK_KEY:
            store.delete(info.key)


def remove_temporary_files(store: Store) -> None:
    """Remove temporary files that a killed process left in a directory."""
    if store.is_local:
        for path in store.path.rglob(f"*{TEMPORARY_SUFFIX}"):
            path.unlink(missing_ok=True)


def check_files(store: Store, receipts: Sequence[PartReceipt]) -> None:
    """Raise `DataError` where a file that a receipt names is absent or has another size."""
    sizes = {info.key: info.size for info in store.list()}
    for receipt in receipts:
        for key, size in receipt.files.items():
            if sizes.get(key) != size:
                size_now = f"{sizes[key]} bytes" if key in sizes else "absent"
                raise DataError(
                    f"{store.url(key)}: {size_now}, its receipt says {size} bytes. Start again "
                    "with --overwrite."
                )


def check_output_path(store: Store) -> None:
    """Raise `ConfigError` where the output, or a directory above it, is a file."""
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
def lock_output(store: Store) -> Iterator[None]:
    """Lock a local output against a second converter; buckets have no such lock.

    Two converters of one job in one bucket write the same bytes; another job is refused with an
    error.
    """
    if not store.is_local:
        yield
        return
    check_output_path(store)
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
    """Remove the output of a conversion that ends with `ConfigError` or `DataError`.

    Finished parts are removed too with `parts_too`; without it, nothing is removed once a part is
    finished.
    """
    try:
        yield
    except (ConfigError, DataError):
        if parts_too or not store.list(RECEIPTS):
            remove_output(store)
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
    store: Store, saved: Mapping[str, Any], current: Mapping[str, Any], kind: str
) -> None:
    differences = list(_differences(saved, current, ""))
    if not differences:
        return
    lines = "\n".join(f"  - {line}" for line in differences[:SHOWN_DIFFERENCES])
    more = len(differences) - SHOWN_DIFFERENCES
    rest = f"\n  - and {more} more" if more > 0 else ""
    raise ConfigError(
        f"--out {store.location}: holds {kind} made with other settings or inputs; nothing was "
        f"changed.\n{lines}{rest}\nChoose another directory, give the same settings, or replace it "
        "with --overwrite."
    )


def _with_renamed_values(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return a saved identity as this version would write it."""
    if "settings" not in identity:
        return dict(identity)
    return {**identity, "settings": with_renamed_values(identity["settings"])}


def _by_size(identity: Mapping[str, Any]) -> dict[str, Any]:
    inputs = identity.get("inputs", {})
    return {**identity, "inputs": {label: [size] for label, (size, *_) in inputs.items()}}


def _input_differences(saved: Mapping[str, Any], current: Mapping[str, Any]) -> Iterator[str]:
    for label in sorted({*saved, *current}):
        if label not in saved:
            yield f"inputs.{label}: was not there then"
        elif label not in current:
            yield f"inputs.{label}: is not there now"
        elif saved[label] != current[label]:
            before, now = saved[label][0], current[label][0]
            sizes = f"{before:,} bytes then, {now:,} now" if before != now else "of the same size"
            yield f"inputs.{label}: changed since ({sizes})"


def _differences(saved: Any, current: Any, path: str) -> Iterator[str]:
    if path == "inputs" and isinstance(saved, dict):
        yield from _input_differences(saved, current)
    elif isinstance(saved, dict) and isinstance(current, dict):
        for key in sorted({*saved, *current}):
            below = f"{path}.{key}" if path else key
            yield from _differences(saved.get(key), current.get(key), below)
    elif saved != current:
        yield f"{path}: {json.dumps(saved)} there, {json.dumps(current)} now"
