"""Write and read named tensors in one directory of torch.distributed.checkpoint's (DCP) format.

The DCP planner and file writer are driven step by step, for two reasons: planning needs one
exchange between the ranks that carries our errors too, and the plan is made from the sharded
tensors of the model while the bytes are written from their host copies. Nothing is hashed, renamed
or sent to other ranks here.
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
    """Plan from the sharded tensors, write the host copy of this rank's shard of each."""

    def __init__(self, host_copies: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._host_copies = host_copies

    def lookup_object(self, index: MetadataIndex) -> Any:
        return self._host_copies[index.fqn]


class DcpWriter:
    """Writes one directory of tensors from all ranks.

    The calls are `local_plan` on all ranks, `global_plan` on rank 0, `write` on all ranks with the
    plan that rank 0 made for each, and `finish` on rank 0.
    """

    def __init__(self, tensors: Mapping[str, Tensor], host_copies: Mapping[str, Tensor]) -> None:
        self._tensors = dict(tensors)
        self._planner = _HostCopyPlanner(host_copies)
        self._writer: FileSystemWriter | None = None
        self._metadata: Metadata | None = None

    def local_plan(self, directory: Path, *, is_rank0: bool) -> SavePlan:
        """Return what this rank would write; rank 0 passes all plans to `global_plan`."""
        self._writer = FileSystemWriter(directory, sync_files=True, per_thread_copy_ahead=0)
        self._planner.set_up_planner(self._tensors, self._writer.storage_meta(), is_rank0)
        self._writer.set_up_storage_writer(is_rank0)
        return self._writer.prepare_local_plan(self._planner.create_local_plan())

    def global_plan(self, plans: Sequence[SavePlan]) -> list[SavePlan]:
        """Return what each rank writes; called on rank 0 only."""
        assert self._writer is not None
        merged, self._metadata = self._planner.create_global_plan(list(plans))
        return list(self._writer.prepare_global_plan(merged))

    def write(self, plan: SavePlan) -> list[WriteResult]:
        """Write and sync this rank's file; rank 0 passes all results to `finish`."""
        assert self._writer is not None
        future = self._writer.write_data(self._planner.finish_plan(plan), self._planner)
        future.wait()
        return list(future.value())

    def finish(self, results: Iterable[list[WriteResult]]) -> None:
        """Write the index of all ranks' tensors; called on rank 0 only."""
        assert self._writer is not None and self._metadata is not None
        self._writer.finish(self._metadata, list(results))


def read_into(directory: Path, targets: Mapping[str, Tensor]) -> None:
    """Fill the target tensors in place, on each rank its own shard, whatever topology wrote them.

    Raises:
        CheckpointError: a target is not in the directory, or has another shape or type there.
    """
    reader = FileSystemReader(directory)
    metadata = read_index(directory)
    _require_same_shapes(directory, metadata, targets)
    planner = DefaultLoadPlanner()
    planner.set_up_planner(dict(targets), metadata, True)
    reader.set_up_storage_reader(metadata, True)
    plan = reader.prepare_local_plan(planner.create_local_plan())
    (plan,) = reader.prepare_global_plan(planner.create_global_plan([plan]))
    reader.read_data(planner.finish_plan(plan), planner).wait()


def read_index(directory: Path) -> Metadata:
    """Read the index of a directory: names, shapes, types and offsets of its tensors.

    The index is a pickle; no code in it is run.
    """
    path = directory / METADATA_NAME
    try:
        with path.open("rb") as file:
            index = _IndexUnpickler(file).load()
        if not isinstance(index, Metadata):
            raise pickle.UnpicklingError(f"holds a {type(index).__name__}")
    except Exception as error:  # an unpickler raises anything
        raise CheckpointError(
            f"{path}: cannot be read ({error}). Use another checkpoint."
        ) from error
    return index


class _IndexUnpickler(pickle.Unpickler):
    """Unpickles an index; only the classes that belong in one are loaded."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _INDEX_NAMES:
            return super().find_class(module, name)
        if module in (Metadata.__module__, "torch") and "." not in name:
            value = super().find_class(module, name)
            is_metadata = isinstance(value, type) and value.__module__ == Metadata.__module__
            if is_metadata or isinstance(value, torch.dtype):
                return value
        raise pickle.UnpicklingError(f"{module}.{name} does not belong in it")


def tensor_metadata(metadata: Metadata) -> dict[str, TensorStorageMetadata]:
    """Return the metadata of the tensors in an index, by name."""
    return {
        name: entry
        for name, entry in metadata.state_dict_metadata.items()
        if isinstance(entry, TensorStorageMetadata)
    }


def _require_same_shapes(
    directory: Path, metadata: Metadata, targets: Mapping[str, Tensor]
) -> None:
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
