"""Save and restore in one process, on a local run directory."""

from __future__ import annotations

from pathlib import Path

import tiny_run as tiny
import torch

from stream_pretrain.checkpoint.state import TrainState


def test_restored_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    model = tiny.make_model()
    optimizer = tiny.make_optimizer(model)
    state = TrainState()
    tiny.train(model, optimizer, state, 5)
    saver = tiny.checkpoints(tmp_path / "run", model, optimizer)
    saver.save(state)
    saved = state.copy()
    after = tiny.train(model, optimizer, state, 5)
    random_after = torch.rand(3)
    saver.close()

    other = tiny.make_model(seed=1)
    other_optimizer = tiny.make_optimizer(other)
    reader = tiny.checkpoints(tmp_path / "run", other, other_optimizer)
    found = reader.find("auto")
    assert found is not None
    restored = reader.restore(found)
    assert restored == saved
    assert other.head.weight is other.embedding.weight
    assert tiny.train(other, other_optimizer, restored, 5) == after
    assert torch.equal(torch.rand(3), random_after)
    assert tiny.fingerprint(model, optimizer) == tiny.fingerprint(other, other_optimizer)
    reader.close()
