"""What a DataLoader worker does first. In: its number. Out: nothing. Does not read data.

torchrun and SLURM signal the whole process group: a worker with the default action would die, and
its rank with it,
before anything is saved. So workers ignore the stop signals, and die with their parent instead.
"""

from __future__ import annotations

from stream_pretrain.runtime.stop import ignore_signals
from stream_pretrain.system.parent_death import die_with_parent


def start_worker(_worker: int) -> None:
    """Ignore stop signals and use one thread."""
    import torch

    ignore_signals()
    die_with_parent()
    torch.set_num_threads(1)
