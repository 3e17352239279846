"""Files of one save. In: a snapshot and an empty directory. Out: synced files and their stamps.
Does not name, publish or delete a checkpoint.
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
    """Stamps of the files that this rank wrote, and (on the leader) of everybody's."""

    own: list[FileStamp]
    everybody: list[FileStamp]


@dataclass(frozen=True, kw_only=True)
class _Share:
    """What one rank tells the leader about the files that it wrote."""

    results: Mapping[str, list[WriteResult]]
    stamps: list[FileStamp]


def write_files(
    place: Path, snapshot: Snapshot, *, ranks: RankGroup, extras: Path | None
) -> WrittenFiles:
    """Write a snapshot over all ranks; each rank hashes its own files, read back from the disk."""
    rank = ranks.world.rank
    writers = {part: DcpWriter(live, snapshot.host[part]) for part, live in snapshot.live.items()}
    plans = ranks.all_ranks(lambda: _local_plans(place, writers, is_rank0=ranks.world.is_rank0))
    plan = ranks.scatter(lambda: _global_plans(writers, plans))
    own: list[FileStamp] = []

    def write() -> _Share:
        share = _write_share(place, writers, plan, snapshot.rng, rank)
        own.extend(share.stamps)
        return share

    shares = ranks.all_ranks(write)
    documents = ranks.rank0(lambda: _finish(place, snapshot, extras, writers, shares))
    everybody = [stamp for share in shares for stamp in share.stamps]
    if ranks.world.is_rank0:
        own.extend(documents)
        everybody.extend(documents)
    return WrittenFiles(own=own, everybody=everybody)


def stamp_files(place: Path, files: Iterable[Path]) -> list[FileStamp]:
    """Size and hash of files, named relative to `place`."""
    return [stamp_of(path, name=path.relative_to(place).as_posix()) for path in sorted(files)]


def _local_plans(place: Path, writers: Writers, *, is_rank0: bool) -> dict[str, SavePlan]:
    return {
        part: writer.local_plan(place / part, is_rank0=is_rank0) for part, writer in writers.items()
    }


def _global_plans(
    writers: Writers, plans: Sequence[Mapping[str, SavePlan]]
) -> list[dict[str, SavePlan]]:
    """For each rank, what it writes of each part."""
    agreed = {
        part: writer.global_plan([of_rank[part] for of_rank in plans])
        for part, writer in writers.items()
    }
    return [{part: of_part[rank] for part, of_part in agreed.items()} for rank in range(len(plans))]


def _write_share(
    place: Path, writers: Writers, plan: Mapping[str, SavePlan], rng: bytes, rank: int
) -> _Share:
    results = {part: writer.write(plan[part]) for part, writer in writers.items()}
    save_directory.write_file(place / rng_name(rank), rng)
    files = [path for part in writers for path in (place / part).glob(f"__{rank}_*")]
    return _Share(results=results, stamps=stamp_files(place, [*files, place / rng_name(rank)]))


def _finish(
    place: Path,
    snapshot: Snapshot,
    extras: Path | None,
    writers: Writers,
    shares: Sequence[_Share],
) -> list[FileStamp]:
    """Leader: the index of each part, the documents, tokenizer and model configuration."""
    for part, writer in writers.items():
        writer.finish([share.results[part] for share in shares])
    for name, data in snapshot.documents.items():
        save_directory.write_file(place / name, data)
    files = [place / name for name in snapshot.documents]
    files += [place / part / METADATA_NAME for part in writers]
    files += save_directory.copy_tree(extras, place) if extras is not None else []
    return stamp_files(place, files)
