"""The network computes what LitGPT's does, and its first weights are a function of the seed."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from litgpt.config import Config
from litgpt.model import GPT
from model.shapes import SHAPES
from safetensors.torch import load_file, save_file
from torch import nn

from stream_pretrain.config.sections import ModelConfig
from stream_pretrain.errors import ConfigError
from stream_pretrain.model.architecture import resolve
from stream_pretrain.model.hf_config import to_hugging_face
from stream_pretrain.model.hf_state_dict import to_hugging_face_tensors
from stream_pretrain.model.litgpt_model import (
    PretrainGPT,
    is_tied,
)
from stream_pretrain.model.protocol import ForwardSettings
from stream_pretrain.model.registry import build_model, model_config_file, model_facts

MOE = {**SHAPES["llama"], "mlp_class_name": "LLaMAMoE", "n_expert": 4, "n_expert_per_token": 2}
MOE |= {"moe_intermediate_size": 24}
GROUPED = {**MOE, "n_expert_groups": 2, "n_topk_groups": 1, "n_topk_scores_per_group": 1}
GROUPED |= {"n_shared_expert": 1, "first_k_dense_replace": 1, "norm_topk_prob": True}
LATENT = {**SHAPES["llama"], "n_query_groups": 4}
LATENT["latent_attention"] = {
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4,
    "v_head_dim": 8,
}
ALL = {**SHAPES, "experts": MOE, "grouped experts": GROUPED, "latent": LATENT}
LLAMA = SHAPES["llama"]


def build(fields: dict[str, Any], *, seed: int = 1, **rest: Any) -> PretrainGPT:
    tied = rest.pop("tied", False)
    return build_model(ModelConfig(config=fields, tie_embeddings=tied), seed=seed, **rest)


def same(a: nn.Module, b: nn.Module) -> bool:
    left, right = a.state_dict(), b.state_dict()
    return list(left) == list(right) and all(torch.equal(left[k], right[k]) for k in left)


@pytest.mark.parametrize("name", ALL)
def test_logits_are_litgpts_own(name: str) -> None:
    network = build(ALL[name])
    theirs = GPT(network.config)
    theirs.load_state_dict(network.state_dict())
    ids = torch.randint(0, 257, (2, 40), generator=torch.Generator().manual_seed(0))
    assert torch.allclose(network(ids), theirs(ids), atol=1e-6)


def test_the_seed_alone_decides_the_first_weights() -> None:
    torch.manual_seed(5)
    first = build(LLAMA, seed=1)
    torch.manual_seed(6)
    torch.rand(3)
    assert same(first, build(LLAMA, seed=1))
    assert not same(first, build(LLAMA, seed=2))


def test_a_weight_does_not_depend_on_the_layers_beside_it() -> None:
    shallow, deep = build({**LLAMA, "n_layer": 1}), build(LLAMA)
    name = "transformer.h.0.attn.qkv.weight"
    assert torch.equal(shallow.state_dict()[name], deep.state_dict()[name])


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("name", ["gpt_neox", "gemma3_text", "grouped experts", "latent"])
def test_the_meta_device_gives_the_same_weights(name: str, tied: bool) -> None:
    network = build(ALL[name], tied=tied, device="meta")
    assert all(p.is_meta for p in network.parameters())
    network.to_empty(device="cpu")
    for module in network.modules():  # what Fabric does when it sets up a meta model
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    network.reset_buffers()
    network.init_weights(seed=1)
    direct = build(ALL[name], tied=tied)
    assert same(network, direct)
    assert is_tied(network) is tied
    ids = torch.arange(20)[None]
    assert torch.equal(network(ids), direct(ids))


def test_every_parameter_is_filled() -> None:
    for fields in ALL.values():
        network = build(fields, device="meta").to_empty(device="cpu")
        for parameter in network.parameters():
            parameter.data.fill_(math.nan)
        network.reset_buffers()
        network.init_weights(seed=1)
        assert not any(p.isnan().any() for p in network.parameters())


def test_the_scheme_is_the_documented_one() -> None:
    network = build({**LLAMA, "n_embd": 256, "intermediate_size": 512, "bias": True})
    state = network.state_dict()
    std = math.sqrt(2 / (5 * 256))
    for name in ("lm_head.weight", "transformer.wte.weight", "transformer.h.0.attn.qkv.weight"):
        assert state[name].std().item() == pytest.approx(std, rel=0.02)
    for name in ("attn.proj", "mlp.proj"):
        weight = state[f"transformer.h.1.{name}.weight"]
        assert weight.std().item() == pytest.approx(std / math.sqrt(6), rel=0.02)
    assert state["transformer.h.0.norm_1.weight"].eq(1).all()
    assert state["transformer.h.0.attn.qkv.bias"].eq(0).all()


def test_gemmas_norms_start_as_the_identity() -> None:
    assert build(SHAPES["gemma"]).state_dict()["transformer.ln_f.weight"].eq(0).all()


def test_tied_embeddings_are_one_parameter_and_stay_so_after_loading() -> None:
    network = build(LLAMA, tied=True)
    names = [name for name, _ in network.named_parameters()]
    assert "lm_head.weight" in names
    assert "transformer.wte.weight" not in names
    network.load_state_dict(build(LLAMA, seed=9, tied=True).state_dict())
    assert is_tied(network)
    assert is_tied(network.to(torch.bfloat16))


def test_tying_changes_the_gradient_and_the_size() -> None:
    tied, untied = build(LLAMA, tied=True), build(LLAMA)
    assert not is_tied(untied)
    matrix = untied.lm_head.weight.numel()
    sizes = [sum(p.numel() for p in n.parameters()) for n in (untied, tied)]
    assert sizes[0] - sizes[1] == matrix


def test_rotary_tables_stay_exact_in_bfloat16() -> None:
    network = build(LLAMA)
    exact = network.cos.clone()
    assert torch.equal(network.to(torch.bfloat16).cos, exact)
    assert network.lm_head.weight.dtype == torch.bfloat16
    network.bfloat16()(torch.arange(8)[None])


def test_a_shorter_sequence_makes_shorter_tables_and_longer_ids_are_refused() -> None:
    network = build(LLAMA, seq_len=16)
    assert network.cos.shape[0] == 16
    with pytest.raises(ValueError, match="ids must have at most 16 positions, got 17"):
        network(torch.zeros(1, 17, dtype=torch.long))


def test_a_sequence_longer_than_the_block_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"block_size is 64: sequences are 65 long"):
        build(LLAMA, seq_len=65)


def test_facts_match_published_sizes() -> None:
    facts = model_facts(ModelConfig(name="pythia-160m"), seq_len=2048)
    assert facts.parameters == 162_322_944
    assert facts.parameters_without_embeddings == 85_056_000
    assert (facts.vocab_size, facts.padded_vocab_size) == (50254, 50304)
    assert (facts.block_size, facts.layers, facts.name) == (2048, 12, "pythia-160m")
    matrices = 12 * 12 * 768 * 768 + 50304 * 768
    assert facts.flops_per_token == 6 * matrices + 12 * 12 * 768 * 2048


def test_tied_parameters_count_once() -> None:
    tied = model_facts(ModelConfig(config=LLAMA, tie_embeddings=True))
    untied = model_facts(ModelConfig(config=LLAMA, tie_embeddings=False))
    assert untied.parameters - tied.parameters == 288 * 32
    assert untied.parameters_without_embeddings == tied.parameters_without_embeddings
    assert untied.flops_per_token == tied.flops_per_token


def test_flops_count_windows_and_visited_experts_only() -> None:
    def flops(fields: dict[str, Any], seq_len: int) -> float:
        return model_facts(ModelConfig(config=fields), seq_len=seq_len).flops_per_token

    long, short = flops(LLAMA, 64), flops(LLAMA, 32)
    assert long - short == 12 * 3 * 32 * 32
    windowed = SHAPES["mistral"]
    assert flops(windowed, 64) == flops(windowed, 5)
    more = {**MOE, "n_expert": 8}
    assert flops(more, 64) - flops(MOE, 64) == 6 * 3 * 4 * 32
    assert flops(LATENT, 64) - flops(LATENT, 32) == 12 * 3 * 32 * 32


def test_the_written_config_builds_the_same_network() -> None:
    network = build(LLAMA, tied=True)
    import yaml

    text = model_config_file(ModelConfig(config=LLAMA, tie_embeddings=True))
    again = GPT(Config(**yaml.safe_load(text)))
    assert again.state_dict().keys() == network.state_dict().keys()


def test_storage_can_be_left_for_a_checkpoint_to_fill() -> None:
    network = build(LLAMA, init_weights=False)
    assert not same(network, build(LLAMA))
    assert torch.equal(network.cos, build(LLAMA).cos)


def write_hugging_face(directory: Path, fields: dict[str, Any], *, tied: bool = False) -> None:
    network = build(fields, tied=tied)
    config = to_hugging_face(resolve(ModelConfig(config=fields)).fields, tied=tied, dtype="float32")
    (directory / "config.json").write_text(json.dumps(config))
    kind = config["model_type"]
    parts = to_hugging_face_tensors(network.state_dict(), network.config, kind, tied=tied)
    tensors = {name: tensor.clone() for name, tensor in parts}
    save_file(tensors, directory / "model.safetensors")


def edit(directory: Path, **changes: torch.Tensor | None) -> None:
    file = directory / "model.safetensors"
    tensors = load_file(file)
    for name, value in changes.items():
        tensors.pop(name.replace("__", "."), None)
        if value is not None:
            tensors[name.replace("__", ".")] = value
    save_file(tensors, file)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lm_head__weight": None}, "it has no tensor 'lm_head.weight'"),
        ({"model__norm__bias": torch.zeros(32)}, "model.norm.bias is not part of this"),
        (
            {"model__norm__weight": torch.zeros(31)},
            "transformer.ln_f.weight is (31,), must be (32,)",
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    write_hugging_face(tmp_path, LLAMA)
    edit(tmp_path, **changes)
    with pytest.raises(ConfigError, match=re.escape(words)) as caught:
        build_model(ModelConfig(init_from=str(tmp_path)), seed=0)
    assert caught.value.faults[0].path == "model.init_from"


def test_another_architecture_than_the_directorys_is_refused(tmp_path: Path) -> None:
    write_hugging_face(tmp_path, LLAMA)
    config = {**LLAMA, "n_query_groups": 4}
    with pytest.raises(ConfigError, match=r"qkv\.weight is \(64, 32\), must be \(96, 32\); "):
        build_model(ModelConfig(config=config, init_from=str(tmp_path)), seed=0)


def test_tables_in_older_files_are_ignored(tmp_path: Path) -> None:
    write_hugging_face(tmp_path, LLAMA)
    edit(tmp_path, model__layers__0__self_attn__rotary_emb__inv_freq=torch.zeros(4))
    assert same(build_model(ModelConfig(init_from=str(tmp_path)), seed=0), build(LLAMA))


def test_a_litgpt_checkpoint_that_lacks_or_adds_a_weight_is_refused(tmp_path: Path) -> None:
    network = build(LLAMA)
    (tmp_path / "model_config.yaml").write_text(
        model_config_file(ModelConfig(config=LLAMA, tie_embeddings=False))
    )
    weights = network.state_dict()
    weights["extra"] = weights.pop("transformer.ln_f.weight")
    torch.save(weights, tmp_path / "lit_model.pth")
    words = r"ln_f\.weight is missing; extra is not part of this architecture"
    with pytest.raises(ConfigError, match=words):
        build_model(ModelConfig(init_from=str(tmp_path)), seed=0)


def test_weights_that_differ_cannot_be_tied(tmp_path: Path) -> None:
    write_hugging_face(tmp_path, LLAMA)
    with pytest.raises(ConfigError, match="differ, so they cannot be tied"):
        build_model(ModelConfig(init_from=str(tmp_path), tie_embeddings=True), seed=0)


def test_tied_weights_can_be_untied(tmp_path: Path) -> None:
    write_hugging_face(tmp_path, LLAMA, tied=True)
    network = build_model(ModelConfig(init_from=str(tmp_path), tie_embeddings=False), seed=0)
    assert not is_tied(network)
    assert torch.equal(network.lm_head.weight, network.transformer.wte.weight)


@pytest.mark.parametrize(
    ("file", "words"),
    [("config.json", "it has neither lit_model.pth nor config.json"), ("", "no model.safetensors")],
)
def test_a_directory_without_weights_is_refused(file: str, words: str, tmp_path: Path) -> None:
    write_hugging_face(tmp_path, LLAMA)
    (tmp_path / "model.safetensors").unlink()
    if file:
        (tmp_path / file).unlink()
    with pytest.raises(ConfigError, match=words):
        build_model(ModelConfig(config=LLAMA, init_from=str(tmp_path)), seed=0)


def test_settings_do_not_change_the_names_of_weights() -> None:
    changed = build(LLAMA, settings=ForwardSettings(loss_chunk=8, recompute_blocks=True))
    assert same(changed, build(LLAMA))
    assert list(changed.state_dict()) == list(GPT(changed.config).state_dict())
