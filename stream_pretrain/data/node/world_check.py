"""Is streaming of one mind with the launcher? In: `World`. Out: nothing, or an error.

Starts no process group.
"""

from __future__ import annotations

from streaming._version import __version__
from streaming.base.world import World as StreamingWorld

from stream_pretrain.errors import TrainingError
from stream_pretrain.schema import World


def check_world(world: World) -> None:
    """Streaming's view of this process must equal the launcher's:

    else ranks would train on the same data.

    Raises:
        TrainingError: on any rank where the two differ.
    """
    seen = StreamingWorld.detect()
    found = (seen.rank, seen.num_ranks, seen.ranks_per_node, seen.node)
    wanted = (world.rank, world.world_size, world.local_world_size, world.node_rank)
    if found != wanted:
        raise TrainingError(
            f"Rank {world.rank}: streaming sees (rank, ranks, ranks per node, node) = {found}, the "
            f"launcher says {wanted}. Start all nodes with the same number of processes."
        )


def library_version() -> str:
    """The version of streaming, part of the data fingerprint."""
    return str(__version__)
