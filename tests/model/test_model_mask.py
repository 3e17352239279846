"""Documents in one sample are kept apart: the same as if each had been computed alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from model.shapes import SHAPES
from torch import Tensor
from torch.nn.attention.flex_attention import create_mask

from stream_pretrain.config.sections import ComputeConfig, LossConfig, ModelConfig
from stream_pretrain.errors import ConfigError
from stream_pretrain.model import attention_mask as masks
from stream_pretrain.model.attention_mask import (
    attention_mask,
    document_ids,
    document_positions,
    masked_attention,
)
from stream_pretrain.model.litgpt_model import PretrainGPT
from stream_pretrain.model.loss import token_loss
from stream_pretrain.model.protocol import ForwardSettings, check_document_mask
from stream_pretrain.model.registry import build_model

EOS = 256
CPU = torch.device("cpu")
DOCUMENTS = [[5, 6, 7], [EOS, 8, 9, 10, 11, 12, 13, 14], [EOS, 1], [EOS], [EOS, 2, 3, 4]]
LATENT = {**SHAPES["llama"], "n_query_groups": 4}
LATENT["latent_attention"] = {
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4,
    "v_head_dim": 8,
}


def packed() -> Tensor:
    return torch.tensor([[token for document in DOCUMENTS for token in document]])


def network(fields: dict[str, Any], *, apart: bool) -> PretrainGPT:
    settings = ForwardSettings(document_eos_id=EOS if apart else None)
    return build_model(ModelConfig(config=fields), seed=1, settings=settings)


def test_documents_and_positions_are_read_off_the_ids() -> None:
    documents = document_ids(packed(), EOS)
    assert documents.tolist() == [[0] * 3 + [1] * 8 + [2] * 2 + [3] + [4] * 4]
    expected = [*range(3), *range(8), *range(2), 0, *range(4)]
    assert document_positions(documents).tolist() == [expected]


@pytest.mark.parametrize("name", [*SHAPES, "latent"])
def test_packed_documents_give_the_logits_of_each_alone(name: str) -> None:
    fields = LATENT if name == "latent" else SHAPES[name]
    together = network(fields, apart=True)(packed())[0]
    alone = [network(fields, apart=False)(torch.tensor([d]))[0] for d in DOCUMENTS]
    assert torch.allclose(together, torch.cat(alone), atol=1e-5)


def test_without_the_mask_documents_see_each_other() -> None:
    together = network(SHAPES["llama"], apart=False)(packed())[0]
    alone = [network(SHAPES["llama"], apart=False)(torch.tensor([d]))[0] for d in DOCUMENTS]
    difference = (together - torch.cat(alone)).abs().amax(-1)
    assert difference[:3].max() < 1e-5
    assert difference[4:].min() > 1e-4


def test_losses_and_gradients_are_those_of_the_documents_alone() -> None:
    ids = torch.cat([packed(), torch.tensor([[EOS]])], dim=1)
    model = network(SHAPES["llama"], apart=True)
    sums = token_loss(model, ids[:, :-1], ids[:, 1:])
    (together,) = torch.autograd.grad(sums.objective, model.lm_head.weight)

    plain = network(SHAPES["llama"], apart=False)
    losses, grads, start = [], [], 0
    for document in DOCUMENTS:
        end = start + len(document)
        part = token_loss(plain, ids[:, start:end], ids[:, start + 1 : end + 1])
        losses.append(part.loss_sum)
        grads.append(torch.autograd.grad(part.objective, plain.lm_head.weight)[0])
        start = end
    assert int(sums.tokens) == 18  # every target stays in use
    assert torch.allclose(sums.loss_sum, torch.stack(losses).sum())
    assert torch.allclose(together, torch.stack(grads).sum(0), atol=1e-5)


def test_each_sample_of_a_batch_has_its_own_documents() -> None:
    first = packed()
    second = first.flip(1)
    model = network(SHAPES["llama"], apart=True)
    both = model(torch.cat([first, second]))
    assert torch.allclose(both[:1], model(first), atol=1e-6)
    assert torch.allclose(both[1:], model(second), atol=1e-6)


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("apart", [False, True])
def test_the_block_mask_allows_what_the_dense_mask_allows(window: int | None, apart: bool) -> None:
    documents = document_ids(packed(), EOS) if apart else None
    length = packed().size(1)
    block = masks._block_mask(length, CPU, documents, window)
    dense = create_mask(block.mask_mod, 1, None, length, length, device="cpu")
    ours = attention_mask(length=length, device=CPU, documents_BT=documents, window=window)
    if ours is None:
        ours = torch.ones(1, 1, length, length, dtype=torch.bool).tril()
    assert isinstance(ours, Tensor)
    assert torch.equal(dense, ours)


def test_plain_causal_attention_needs_no_mask() -> None:
    assert attention_mask(length=8, device=CPU) is None
    assert attention_mask(length=8, device=CPU, window=8) is None
    assert attention_mask(length=9, device=CPU, window=8) is not None


def test_the_configuration_decides_how_a_forward_pass_is_computed() -> None:
    settings = ForwardSettings.of(
        model=ModelConfig(name="pythia-14m", document_mask=True),
        loss=LossConfig(z_loss=0.1, chunk=7),
        compute=ComputeConfig(activation_checkpointing=True),
        eos_id=EOS,
    )
    expected = {"loss_chunk": 7, "z_weight": 0.1, "recompute_blocks": True}
    assert settings == ForwardSettings(document_eos_id=EOS, **expected)  # type: ignore[arg-type]
    plain = ModelConfig(name="pythia-14m")
    nothing = {"loss": LossConfig(), "compute": ComputeConfig(), "eos_id": EOS}
    assert ForwardSettings.of(model=plain, **nothing) == ForwardSettings()  # type: ignore[arg-type]


def test_a_document_mask_without_an_end_of_text_is_refused() -> None:
    model = ModelConfig(name="pythia-14m", document_mask=True)
    with pytest.raises(ConfigError, match=r"model\.document_mask is true: the data names no end"):
        ForwardSettings.of(model=model, loss=LossConfig(), compute=ComputeConfig(), eos_id=None)
    assert check_document_mask(model, 0) == []
    assert check_document_mask(ModelConfig(name="pythia-14m"), None) == []


@pytest.mark.slow
@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # from inductor's own imports
def test_flex_attention_equals_dense_attention(softcap: float | None) -> None:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 20, (2, 256), generator=generator)
    documents = document_ids(ids, 3)
    q, k, v = (torch.randn(2, 4, 256, 16, generator=generator) for _ in range(3))
    block = masks._block_mask(256, CPU, documents, 40)
    dense = attention_mask(length=256, device=CPU, documents_BT=documents, window=40)
    with torch.no_grad():  # flex attention has no backward pass on a CPU
        flex = masked_attention(q, k, v, block, scale=0.25, softcap=softcap)
        plain = masked_attention(q, k, v, dense, scale=0.25, softcap=softcap)
    assert torch.allclose(flex, plain, atol=1e-5)
