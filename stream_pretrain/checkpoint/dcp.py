"""Named tensors <-> one directory in torch.distributed.checkpoint's format. Does not hash, rename
or communicate.

The planner and the file writer are driven step by step, because planning needs one exchange between
the ranks that carries our errors too, and writing must take the host copies while the plan is made
from the live, sharded tensors.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.checkpoint.storage import WriteResult

from stream_pretrain.errors import CheckpointError

METADATA_NAME = ".metadata"
_INDEX_NAMES = {
    ("builtins", "set"),
    ("collections", "OrderedDict"),
    ("pathlib", "Path"),
    ("pathlib", "PosixPath"),
    ("pathlib._local", "PosixPath"),
    ("torch", "Size"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
}


class _HostCopyPlanner(DefaultSavePlanner):
    """Plans from live tensors, writes their host copies (this rank's shard of each)."""

    def __init__(self, host: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._host = host

    def lookup_object(self, index: MetadataIndex) -> Any:
        return self._host[index.fqn]


class DcpWriter:
    """Writes one directory of tensors over all ranks: `local_plan`, exchange, `write`, exchange,
    `finish`.
    """

    def __init__(self, live: Mapping[str, Tensor], host: Mapping[str, Tensor]) -> None:
        self._live = dict(live)
        self._planner = _HostCopyPlanner(host)
        self._writer: FileSystemWriter | None = None
        self._metadata: Metadata | None = None

    def local_plan(self, directory: Path, *, is_rank0: bool) -> SavePlan:
        """What this rank would write; all ranks' plans go to the leader's `global_plan`."""
        self._writer = FileSystemWriter(directory, sync_files=True, per_thread_copy_ahead=0)
        self._planner.set_up_planner(self._live, self._writer.storage_meta(), is_rank0)
        self._writer.set_up_storage_writer(is_rank0)
        return self._writer.prepare_local_plan(self._planner.create_local_plan())

    def global_plan(self, plans: Sequence[SavePlan]) -> list[SavePlan]:
        """Leader only: what each rank is to write."""
        assert self._writer is not None
        agreed, self._metadata = self._planner.create_global_plan(list(plans))
        return list(self._writer.prepare_global_plan(agreed))

    def write(self, plan: SavePlan) -> list[WriteResult]:
        """Write and sync this rank's file; the results go to the leader's `finish`."""
        assert self._writer is not None
        future = self._writer.write_data(self._planner.finish_plan(plan), self._planner)
        future.wait()
        return list(future.value())

    def finish(self, results: Iterable[list[WriteResult]]) -> None:
        """Leader only: write the index of all ranks' tensors."""
        assert self._writer is not None and self._metadata is not None
        self._writer.finish(self._metadata, list(results))


def read_into(directory: Path, targets: Mapping[str, Tensor]) -> None:
    """Fill the target tensors in place, each rank its own shard, whatever topology wrote them.

    `CheckpointError` when a target is not in the directory or has another shape or type.
    """
    reader = FileSystemReader(directory)
    metadata = read_index(directory)
    _compare(directory, metadata, targets)
    planner = DefaultLoadPlanner()
    planner.set_up_planner(dict(targets), metadata, True)
    reader.set_up_storage_reader(metadata, True)
    plan = reader.prepare_local_plan(planner.create_local_plan())
    (plan,) = reader.prepare_global_plan(planner.create_global_plan([plan]))
    reader.read_data(planner.finish_plan(plan), planner).wait()


def read_index(directory: Path) -> Metadata:
    """The index of a directory: names, shapes, types, places in files. Runs no code from it."""
    place = directory / METADATA_NAME
    try:
        with place.open("rb") as file:
            index = _IndexUnpickler(file).load()
        if not isinstance(index, Metadata):
            raise pickle.UnpicklingError(f"holds a {type(index).__name__}")
    except Exception as error:  # an unpickler raises anything
        raise CheckpointError(
            f"{place}: cannot be read ({error}). Use another checkpoint."
        ) from error
    return index


class _IndexUnpickler(pickle.Unpickler):
    """An index is a pickle: only the classes that belong in one are made."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _INDEX_NAMES:
            return super().find_class(module, name)
        if module in (Metadata.__module__, "torch") and "." not in name:
            found = super().find_class(module, name)
            own = isinstance(found, type) and found.__module__ == Metadata.__module__
            if own or isinstance(found, torch.dtype):
                return found
        raise pickle.UnpicklingError(f"{module}.{name} does not belong in it")


def tensor_metadata(metadata: Metadata) -> dict[str, TensorStorageMetadata]:
    """NamedTensors of an index by name."""
    return {
        name: entry
        for name, entry in metadata.state_dict_metadata.items()
        if isinstance(entry, TensorStorageMetadata)
    }


def _compare(directory: Path, metadata: Metadata, targets: Mapping[str, Tensor]) -> None:
    stored = tensor_metadata(metadata)
    faults = []
    for name, target in targets.items():
        if name not in stored:
            faults.append(f"{name} is missing")
        elif stored[name].size != target.shape:
            faults.append(f"{name} is {tuple(stored[name].size)}, not {tuple(target.shape)}")
        elif stored[name].properties.dtype != target.dtype:
            faults.append(f"{name} is {stored[name].properties.dtype}, not {target.dtype}")
    if faults:
        shown = "; ".join(faults[:5]) + (f"; and {len(faults) - 5} more" if len(faults) > 5 else "")
        raise CheckpointError(
            f"{directory}: {shown}. Resume with the model and optimizer that wrote it."
        )
