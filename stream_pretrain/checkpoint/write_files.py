"""Write the files of one save from all ranks, and return their sizes and hashes.

A snapshot on each rank and an empty directory go in; synced files and their stamps come out.
Nothing is published, renamed or deleted here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.checkpoint.storage import WriteResult

from stream_pretrain.checkpoint import save_directory
from stream_pretrain.checkpoint.dcp import METADATA_NAME, DcpWriter
from stream_pretrain.checkpoint.layout import rng_name
from stream_pretrain.checkpoint.rank_group import RankGroup
from stream_pretrain.checkpoint.snapshot import Snapshot
from stream_pretrain.schema import FileStamp
from stream_pretrain.storage.hashing import stamp_of

Writers = Mapping[str, DcpWriter]


@dataclass(frozen=True, kw_only=True)
class WrittenFiles:
    """Stamps of the files that this rank wrote and, on rank 0, of those that all ranks wrote."""

    this_rank: list[FileStamp]
    all_ranks: list[FileStamp]


@dataclass(frozen=True, kw_only=True)
class _RankFiles:
    """What one rank reports to rank 0 about the files that it wrote."""

    results: Mapping[str, list[WriteResult]]
    stamps: list[FileStamp]


def write_files(
    directory: Path, snapshot: Snapshot, *, ranks: RankGroup, extras: Path | None
) -> WrittenFiles:
    """Write a snapshot from all ranks; each rank hashes its own files, read back from the disk."""
    rank = ranks.world.rank
    writers = {
        part: DcpWriter(tensors, snapshot.host_copies[part])
        for part, tensors in snapshot.tensors.items()
    }
    plans = ranks.all_ranks(lambda: _local_plans(directory, writers, is_rank0=ranks.world.is_rank0))
    plan = ranks.scatter(lambda: _global_plans(writers, plans))
    this_rank: list[FileStamp] = []

    def write() -> _RankFiles:
        written = _write_rank_files(directory, writers, plan, snapshot.rng, rank)
        this_rank.extend(written.stamps)
        return written

    of_ranks = ranks.all_ranks(write)
    common = ranks.rank0(
        lambda: _write_common_files(directory, snapshot, extras, writers, of_ranks)
    )
    all_ranks = [stamp for written in of_ranks for stamp in written.stamps]
    if ranks.world.is_rank0:
        this_rank.extend(common)
        all_ranks.extend(common)
    return WrittenFiles(this_rank=this_rank, all_ranks=all_ranks)


def _stamp_files(directory: Path, files: Iterable[Path]) -> list[FileStamp]:
    """Return size and hash of each file, named relative to `directory`."""
    return [stamp_of(path, name=path.relative_to(directory).as_posix()) for path in sorted(files)]


def _local_plans(directory: Path, writers: Writers, *, is_rank0: bool) -> dict[str, SavePlan]:
    return {
        part: writer.local_plan(directory / part, is_rank0=is_rank0)
        for part, writer in writers.items()
    }


def _global_plans(
    writers: Writers, plans: Sequence[Mapping[str, SavePlan]]
) -> list[dict[str, SavePlan]]:
    """Return, for each rank, what it writes of each part (model, optimizer)."""
    by_part = {
        part: writer.global_plan([of_rank[part] for of_rank in plans])
        for part, writer in writers.items()
    }
    return [
        {part: of_part[rank] for part, of_part in by_part.items()} for rank in range(len(plans))
    ]


def _write_rank_files(
    directory: Path, writers: Writers, plan: Mapping[str, SavePlan], rng: bytes, rank: int
) -> _RankFiles:
    results = {part: writer.write(plan[part]) for part, writer in writers.items()}
    rng_path = directory / rng_name(rank)
    save_directory.write_file(rng_path, rng)
    files = [path for part in writers for path in (directory / part).glob(f"__{rank}_*")]
    return _RankFiles(results=results, stamps=_stamp_files(directory, [*files, rng_path]))


def _write_common_files(
    directory: Path,
    snapshot: Snapshot,
    extras: Path | None,
    writers: Writers,
    reports: Sequence[_RankFiles],
) -> list[FileStamp]:
    """Write the files that rank 0 alone writes: indexes, JSON files, tokenizer, model config."""
    for part, writer in writers.items():
        writer.finish([written.results[part] for written in reports])
    for name, data in snapshot.json_files.items():
        save_directory.write_file(directory / name, data)
    files = [directory / name for name in snapshot.json_files]
    files += [directory / part / METADATA_NAME for part in writers]
    files += save_directory.copy_tree(extras, directory) if extras is not None else []
    return _stamp_files(directory, files)
