"""What is exported gives the same logits and ids to others, or does not appear."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from export_shapes import trained
from model.shapes import SHAPES

from stream_pretrain.config.sections import ModelConfig
from stream_pretrain.errors import CheckpointError, ConfigError
from stream_pretrain.export.huggingface import export_huggingface, transformers
from stream_pretrain.export.litgpt import export_litgpt
from stream_pretrain.export.parity import sample_ids
from stream_pretrain.export.trained_model import TrainedModel
from stream_pretrain.model.architecture import Architecture
from stream_pretrain.model.litgpt_definition import LitGPTDefinition
from stream_pretrain.model.litgpt_model import is_tied
from stream_pretrain.model.registry import build_model


@pytest.fixture(params=[False, True], ids=["untied", "tied"])
def tied(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.mark.parametrize("name", SHAPES)
def test_every_family_survives_the_way_to_hugging_face_and_back(
    name: str, tied: bool, tmp_path: Path
) -> None:
    source = trained(name, tied=tied)
    parity = export_huggingface(source, tmp_path / "hf")
    assert parity.relative < 1e-4
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["model_type"] == name.split()[0]
    assert config["tie_word_embeddings"] is tied
    back = build_model(ModelConfig(init_from=str(tmp_path / "hf")), seed=99)
    assert is_tied(back) is tied
    weights = back.state_dict()
    assert set(weights) == set(source.weights)
    assert all(torch.equal(weights[key], value) for key, value in source.weights.items())


@pytest.mark.parametrize("name", ["gpt_neox", "llama", "gemma2"])
def test_a_hugging_face_model_goes_in_and_out_unchanged(name: str, tmp_path: Path) -> None:
    export_huggingface(trained(name), tmp_path / "first")
    network = build_model(ModelConfig(init_from=str(tmp_path / "first")), seed=1)
    again = replace(trained(name), weights=network.state_dict())
    export_huggingface(again, tmp_path / "second")
    auto = transformers().AutoModelForCausalLM
    first, second = (auto.from_pretrained(tmp_path / n).state_dict() for n in ("first", "second"))
    assert list(first) == list(second)
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_transformers_loads_tokenizer_and_generates(tmp_path: Path) -> None:
    export_huggingface(trained("llama"), tmp_path / "hf")
    library = transformers()
    tokenizer = library.AutoTokenizer.from_pretrained(tmp_path / "hf")
    model = library.AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    assert tokenizer.eos_token_id == model.config.eos_token_id == 256
    assert model.generation_config.eos_token_id == 256
    prompt = torch.tensor([tokenizer.encode("ab")])
    out = model.generate(prompt, max_new_tokens=4, do_sample=False)
    assert out.shape[1] <= 6


def test_weights_beyond_the_limit_are_cut_into_shards(tmp_path: Path) -> None:
    source = trained("qwen3")
    export_huggingface(source, tmp_path / "hf", shard_bytes=60_000)
    shards = sorted(path.name for path in (tmp_path / "hf").glob("*.safetensors"))
    assert len(shards) > 1
    assert shards[0] == f"model-00001-of-{len(shards):05d}.safetensors"
    index = json.loads((tmp_path / "hf" / "model.safetensors.index.json").read_text())
    sizes = sum(tensor.numel() * 4 for tensor in source.weights.values())
    assert index["metadata"]["total_size"] == sizes
    back = build_model(ModelConfig(init_from=str(tmp_path / "hf")), seed=0).state_dict()
    assert all(torch.equal(back[key], value) for key, value in source.weights.items())


@pytest.mark.parametrize("name", ["gpt_neox", "gemma3_text"])
def test_a_litgpt_directory_loads_in_litgpt(name: str, tied: bool, tmp_path: Path) -> None:
    from litgpt.config import Config
    from litgpt.model import GPT
    from litgpt.tokenizer import Tokenizer
    from litgpt.utils import check_valid_checkpoint_dir

    source = trained(name, tied=tied)
    parity = export_litgpt(source, tmp_path / "lit")
    assert parity.relative < 1e-4
    check_valid_checkpoint_dir(tmp_path / "lit", raise_error=True)
    network = GPT(Config.from_file(tmp_path / "lit" / "model_config.yaml")).eval()
    network.load_state_dict(torch.load(tmp_path / "lit" / "lit_model.pth", weights_only=True))
    ids = torch.arange(20)[None]
    assert torch.allclose(network(ids), source.network()(ids), atol=1e-5)
    tokenizer = Tokenizer(tmp_path / "lit")
    assert tokenizer.encode("aé").tolist() == [97, 195, 169]
    assert tokenizer.eos_id == 256


def test_a_litgpt_directory_starts_a_run(tied: bool, tmp_path: Path) -> None:
    source = trained("llama", tied=tied)
    export_litgpt(source, tmp_path / "lit")
    network = build_model(ModelConfig(init_from=str(tmp_path / "lit")), seed=5)
    assert is_tied(network) is tied
    assert all(torch.equal(network.state_dict()[k], v) for k, v in source.weights.items())


def test_bfloat16_weights_stay_bfloat16(tmp_path: Path) -> None:
    source = trained("llama")
    source = replace(source, weights={k: v.bfloat16() for k, v in source.weights.items()})
    export_huggingface(source, tmp_path / "hf")
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["torch_dtype"] == "bfloat16"
    model = transformers().AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype="auto")
    assert model.dtype == torch.bfloat16


def _changed(shape: str, **fields: object) -> TrainedModel:
    source = trained(shape)
    architecture = Architecture(fields={**source.architecture.fields, **fields}, tied=False)
    return replace(source, definition=LitGPTDefinition(architecture))


@pytest.mark.parametrize(
    ("name", "fields", "reason"),
    [
        ("gpt_neox", {"shared_attention_norm": True}, "shared_attention_norm is True, gpt_neox"),
        ("gpt_neox", {"lm_head_bias": True}, "lm_head_bias is True"),
        ("gpt_neox", {"bias": False}, "bias is False, must be True"),
        ("gpt_neox", {"n_query_groups": 2}, "n_query_groups is 2, must equal n_head"),
        ("gpt_neox", {"head_size": 16}, "head_size is 16, must be n_embd / n_head"),
        ("llama", {"parallel_residual": True}, "parallel_residual is True, must be False"),
        ("llama", {"rotary_percentage": 0.5}, "rotary_percentage is 0.5, must be 1.0"),
        ("llama", {"name": "Gemma-like"}, "norms of a config named 'Gemma-like'"),
        ("llama", {"rope_adjustments": {"beta_fast": 1}}, "neither linear nor llama3"),
        (
            "llama",
            {"rope_adjustments": {"factor": 2.0}, "rope_condense_ratio": 2},
            "rope_condense_ratio beside rope_adjustments",
        ),
        ("mistral", {"sliding_window_indices": [1, 0, 1]}, "not every layer slides"),
        ("qwen3", {"norm_qk_type": "olmo2"}, "norm_qk_type is 'olmo2'"),
        ("gemma", {"scale_embeddings": False}, "scale_embeddings is False, must be True"),
        ("gemma2", {"sliding_window_size": None}, "gemma2 always has sliding layers"),
        ("gemma3_text", {"rope_indices": [0, 1, 1]}, "exactly the layers that slide"),
        ("llama", {"mlp_class_name": "LLaMAMoE", "n_expert": 4}, "n_expert is 4"),
    ],
)
def test_what_hugging_face_cannot_express_is_refused_with_the_reason(
    name: str, fields: dict[str, object], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=re.escape(reason)) as caught:
        export_huggingface(_changed(name, **fields), tmp_path / "hf")
    assert "Use --format litgpt" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("write", [export_huggingface, export_litgpt])
def test_a_directory_that_holds_something_is_left_alone(write: object, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("keep")
    with pytest.raises(ConfigError, match=r"--out is .*out: exists already; name a new directory"):
        write(trained("llama"), tmp_path / "out")  # type: ignore[operator]
    assert (tmp_path / "out" / "mine.txt").read_text() == "keep"


def test_other_logits_are_noticed_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "stream_pretrain.export.huggingface.to_hugging_face",
        lambda fields, **rest: _wrong_base(fields, **rest),
    )
    with pytest.raises(CheckpointError, match=r"its logits differ .* so it was not written"):
        export_huggingface(trained("llama"), tmp_path / "hf")
    assert list(tmp_path.iterdir()) == []


def _wrong_base(fields: object, **rest: object) -> dict[str, object]:
    from stream_pretrain.model.hf_config import to_hugging_face

    return {**to_hugging_face(fields, **rest), "rope_theta": 100}  # type: ignore[arg-type]


def test_a_tokenizer_that_transformers_reads_otherwise_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Other:
        def encode(self, _text: str) -> list[int]:
            return [1]

    auto = transformers().AutoTokenizer
    monkeypatch.setattr(auto, "from_pretrained", lambda *_args, **_kwargs: Other())
    with pytest.raises(CheckpointError, match=r"gives other ids than tokenizer\.json"):
        export_huggingface(trained("llama"), tmp_path / "hf")


def test_logits_are_compared_beyond_the_sliding_window() -> None:
    ids = sample_ids(_changed("mistral", sliding_window_size=200, block_size=512))
    assert ids.shape == (2, 216)
    assert sample_ids(trained("llama")).max() < 257


def test_a_run_without_a_tokenizer_is_exported_without_one(tmp_path: Path) -> None:
    export_huggingface(trained("llama", tokenizer=False), tmp_path / "hf")
    assert not (tmp_path / "hf" / "tokenizer.json").exists()
