"""Losses are sums over tokens, whatever is chunked, recomputed, masked or mixed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from model.shapes import SHAPES
from torch import Tensor, nn

from stream_pretrain.config.sections import ModelConfig, OptimizerConfig
from stream_pretrain.model.litgpt_model import PretrainGPT
from stream_pretrain.model.loss import IGNORED_TARGET, LossSums, loss_by_stream, token_loss
from stream_pretrain.model.protocol import ForwardSettings
from stream_pretrain.model.registry import build_model
from stream_pretrain.optim.build_optimizer import build_optimizer


def network(name: str = "llama", **settings: Any) -> PretrainGPT:
    config = ModelConfig(config=SHAPES[name])
    return build_model(config, seed=1, settings=ForwardSettings(**settings))


def batch(samples: int = 3, length: int = 20) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 257, (samples, length + 1), generator=generator)
    return ids[:, :-1], ids[:, 1:].clone()


def gradients(model: nn.Module, sums: LossSums) -> dict[str, Tensor]:
    names, parameters = zip(*model.named_parameters(), strict=True)
    values = torch.autograd.grad(sums.objective, parameters)
    return dict(zip(names, values, strict=True))


def test_the_loss_is_a_sum_of_cross_entropies_and_a_count() -> None:
    model = network()
    inputs, targets = batch()
    targets[0, 5:] = IGNORED_TARGET
    sums = token_loss(model, inputs, targets)
    logits = model(inputs)
    expected = nn.functional.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), reduction="sum", ignore_index=IGNORED_TARGET
    )
    assert sums.loss_sum.item() == pytest.approx(expected.item(), rel=1e-6)
    assert sums.objective.item() == sums.loss_sum.item()
    assert sums.tokens.item() == 45
    assert sums.sample_tokens.tolist() == [5, 20, 20]
    assert sums.sample_losses.sum().item() == pytest.approx(sums.loss_sum.item())
    assert sums.objective.requires_grad
    assert not any(t.requires_grad for t in sums[1:])


def test_micro_batches_add_up_to_the_whole_batch() -> None:
    model = network()
    inputs, targets = batch()
    targets[0, 3:] = IGNORED_TARGET
    whole = token_loss(model, inputs, targets)
    parts = [token_loss(model, inputs[i : i + 1], targets[i : i + 1]) for i in range(3)]
    assert sum(p.loss_sum.item() for p in parts) == pytest.approx(whole.loss_sum.item())
    assert sum(int(p.tokens) for p in parts) == int(whole.tokens)


@pytest.mark.parametrize("chunk", [1, 7, 20, 59])
@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_chunks_change_neither_loss_nor_gradient(chunk: int, name: str) -> None:
    inputs, targets = batch()
    targets[1, ::2] = IGNORED_TARGET
    whole, chunked = network(name, z_weight=1e-2), network(name, loss_chunk=chunk, z_weight=1e-2)
    a, b = token_loss(whole, inputs, targets), token_loss(chunked, inputs, targets)
    assert torch.allclose(a.objective, b.objective)
    assert torch.allclose(a.sample_losses, b.sample_losses)
    grads = gradients(chunked, b)
    for key, value in gradients(whole, a).items():
        assert torch.allclose(value, grads[key], atol=1e-5), key


def test_no_more_logits_than_a_chunk_exist_at_once() -> None:
    model = network(loss_chunk=16)
    sizes: list[int] = []
    model.lm_head.register_forward_hook(lambda _m, _i, out: sizes.append(out.numel() // 288))
    inputs, targets = batch()
    sums = token_loss(model, inputs, targets)
    assert sizes == [16, 16, 16, 12]
    gradients(model, sums)
    assert sorted(sizes) == sorted([16, 16, 16, 12] * 2)  # once more in the backward pass
    sizes.clear()
    with torch.no_grad():
        token_loss(model, inputs, targets)
    assert sizes == [16, 16, 16, 12]


def test_z_loss_is_in_the_objective_alone() -> None:
    inputs, targets = batch()
    targets[0, :4] = IGNORED_TARGET
    plain, with_z = network(), network(z_weight=0.5)
    a, b = token_loss(plain, inputs, targets), token_loss(with_z, inputs, targets)
    assert torch.equal(a.loss_sum, b.loss_sum)
    square = plain(inputs).logsumexp(-1).square()[targets != IGNORED_TARGET].sum()
    assert (b.objective - b.loss_sum).item() == pytest.approx(0.5 * square.item(), rel=1e-5)
    assert not torch.equal(
        gradients(plain, a)["lm_head.weight"], gradients(with_z, b)["lm_head.weight"]
    )


def test_losses_by_stream_add_up() -> None:
    sums = token_loss(network(), *batch(samples=4))
    loss_S, tokens_S = loss_by_stream(sums, torch.tensor([2, 0, 2, 2]), 4)
    assert tokens_S.tolist() == [20, 0, 60, 0]
    assert loss_S[[1, 3]].tolist() == [0, 0]
    assert loss_S[0].item() == pytest.approx(sums.sample_losses[1].item())
    assert loss_S.sum().item() == pytest.approx(sums.loss_sum.item())


@pytest.mark.parametrize("eos", [None, 3])
def test_recomputed_blocks_give_the_same_gradients_from_less_memory(eos: int | None) -> None:
    kept = []
    results = []
    for recompute in (False, True):
        model = network("gemma3_text", recompute_blocks=recompute, document_eos_id=eos)
        sizes: list[int] = []

        def pack(tensor: Tensor, sizes: list[int] = sizes) -> Tensor:
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            sums = token_loss(model, *batch())
        kept.append(sum(sizes))
        results.append(gradients(model, sums))
    assert kept[1] < kept[0] / 2
    assert all(torch.equal(results[0][key], results[1][key]) for key in results[0])


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "bf16-true"])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_every_precision_learns_and_reports_in_float32(precision: Any, optimizer: str) -> None:
    fabric = Fabric(accelerator="cpu", devices=1, precision=precision)
    model = network(loss_chunk=16, recompute_blocks=True, document_eos_id=3)
    wrapped = fabric.setup_module(model)
    updates = build_optimizer(model, OptimizerConfig(name=optimizer, lr=1e-2))
    stepper = fabric.setup_optimizers(updates)
    losses = []
    for _ in range(4):
        sums = token_loss(wrapped, *batch())
        fabric.backward(sums.objective / 60)
        stepper.step()
        updates.zero_grad()
        losses.append(sums.loss_sum.item() / 60)
    assert sums.loss_sum.dtype == torch.float32
    assert sums.tokens.dtype == torch.int64
    assert losses[0] == pytest.approx(5.96, abs=0.1)
    assert losses[-1] < losses[0] - 1


def test_a_mixed_precision_head_still_sums_in_float32() -> None:
    model = network().bfloat16()
    sums = token_loss(model, *batch())
    assert sums.objective.dtype == sums.loss_sum.dtype == torch.float32


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # from torch's own tracing
def test_blocks_compiled_in_place_keep_names_and_losses() -> None:
    model = network()
    names = list(model.state_dict())
    before = token_loss(model, *batch())
    for block in model.transformer.h:
        block.compile(backend="aot_eager")
    after = token_loss(model, *batch())
    assert list(model.state_dict()) == names
    assert [name for name, _ in model.named_parameters() if "_orig_mod" in name] == []
    assert after.loss_sum.item() == pytest.approx(before.loss_sum.item(), rel=1e-5)
