"""One FSDP2 rank of `test_model_ranks`: build on the meta device, train, compare with one process.

Arguments: rank, world size, a rendezvous file and an optimizer name. The exit code is 0 where
everything is as in one process.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from model.shapes import SHAPES
from torch import Tensor

from stream_pretrain.config.sections import ModelConfig, OptimizerConfig
from stream_pretrain.model.litgpt_model import PretrainGPT, is_tied
from stream_pretrain.model.loss import token_loss
from stream_pretrain.model.protocol import ForwardSettings
from stream_pretrain.model.registry import build_model
from stream_pretrain.optim.build_optimizer import build_optimizer
from stream_pretrain.runtime.fsdp import BlockSharder

SHAPE = {**SHAPES["qwen3"], "n_layer": 2}
SETTINGS = ForwardSettings(loss_chunk=16, recompute_blocks=True, z_weight=1e-3)


def build(device: str) -> PretrainGPT:
    config = ModelConfig(config=SHAPE, tie_embeddings=True)
    return build_model(config, seed=7, settings=SETTINGS, device=device)


def ids() -> Tensor:
    return torch.randint(0, 257, (4, 25), generator=torch.Generator().manual_seed(0))


def step(model: PretrainGPT, optimizer: torch.optim.Optimizer, rows: Tensor, scale: float) -> None:
    sums = token_loss(model, rows[:, :-1], rows[:, 1:])
    torch.autograd.backward(sums.objective * scale / (4 * 24))
    optimizer.step()
    optimizer.zero_grad()


def whole(tensor: Any) -> Tensor:
    full: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return full


def main(rank: int, world_size: int, rendezvous: str, optimizer: str) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world_size
    )
    section = OptimizerConfig(name=optimizer, lr=1e-2)
    sharded, alone = build("meta"), build("cpu")
    BlockSharder(world_size=world_size, group=world_size, device_type="cpu")(sharded, None)  # type: ignore[arg-type]
    sharded.to_empty(device="cpu")
    sharded.reset_buffers()
    sharded.init_weights(seed=7)
    assert is_tied(sharded)
    compare(sharded, alone, limit=0.0)

    ours, theirs = build_optimizer(sharded, section), build_optimizer(alone, section)
    for _ in range(3):
        step(sharded, ours, ids()[rank::world_size], float(world_size))
        step(alone, theirs, ids(), 1.0)
    assert is_tied(sharded)
    compare(sharded, alone, limit=2e-3)
    marked: Any = ours
    marked.found_inf = torch.ones(())
    before = {name: whole(p).clone() for name, p in sharded.named_parameters()}
    step(sharded, ours, ids()[rank::world_size], float(world_size))
    for name, parameter in sharded.named_parameters():
        assert torch.equal(whole(parameter), before[name]), name
    dist.barrier()


def compare(sharded: PretrainGPT, alone: PretrainGPT, *, limit: float) -> None:
    expected = alone.state_dict()
    actual = sharded.state_dict()
    assert list(actual) == list(expected)
    for name, tensor in actual.items():
        difference = (whole(tensor) - expected[name]).abs().max().item()
        assert difference <= limit, f"{name} differs by {difference}"


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
    # 2 of 24 ranks aborted in the interpreter's own exit ("terminate called without an active
    # exception": a thread of the process group that nobody joined), after all was compared
    os._exit(0)
