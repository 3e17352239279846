"""Which architecture a configuration stands for, and what is refused before anything is built."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from model.shapes import SHAPES

from stream_pretrain.config.sections import ModelConfig
from stream_pretrain.errors import ConfigError
from stream_pretrain.model.architecture import Architecture, known_names, resolve
from stream_pretrain.model.hf_config import from_hugging_face, to_hugging_face

LLAMA = SHAPES["llama"]


def test_a_name_and_fields_that_replace_its_own() -> None:
    made = resolve(ModelConfig(name="pythia-14m", config={"n_layer": 2}))
    assert (made.fields["n_layer"], made.fields["n_embd"]) == (2, 128)
    assert made.fields["name"] == "pythia-14m"


def test_hugging_faces_names_are_names_too() -> None:
    assert resolve(ModelConfig(name="EleutherAI/pythia-14m")).fields["n_layer"] == 6
    assert {"pythia-14m", "EleutherAI/pythia-14m", "Qwen3-0.6B"} <= set(known_names())


@pytest.mark.parametrize(
    ("config", "path", "words"),
    [
        ({"name": "pythia-14n"}, "model.name", "did you mean pythia-14m"),
        ({"name": "@"}, "model.name", "it is no LitGPT config"),
        ({"config": {"n_layers": 2}}, "model.config.n_layers", "mean model.config.n_layer?"),
        ({"config": {"zzz": 2}}, "model.config.zzz", "LitGPT's Config has no such field"),
        ({"config": {"n_embd": 30, "n_head": 4}}, "model.config", "do not go together"),
        (
            {"config": {"mlp_class_name": "LLaMAMLP"}},
            "model.config",
            "needs to set the `intermediate_size`",
        ),
        (
            {"config": {"lm_head_bias": True}, "tie_embeddings": True},
            "model.tie_embeddings",
            "a head with a bias is not an embedding",
        ),
    ],
)
def test_what_is_no_architecture_is_refused(config: dict[str, Any], path: str, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)) as caught:
        resolve(ModelConfig(**config))
    assert caught.value.faults[0].path == path


def test_all_unknown_fields_come_together() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(ModelConfig(config={"a": 1, "b": 2}))
    assert len(caught.value.faults) == 2


@pytest.mark.parametrize(
    ("name", "tied"),
    [
        ("pythia-160m", False),
        ("tiny-llama-1.1b", False),
        ("Llama-3.2-1B", True),
        ("Llama-3.1-8B", False),
        ("Qwen2.5-0.5B", True),
        ("Qwen2.5-7B", False),
        ("Qwen3-0.6B", True),
        ("Qwen3-8B", False),
        ("Gemma-2b", True),
        ("Gemma-3-1b-it", True),
        ("SmolLM2-135M", True),
    ],
)
def test_embeddings_are_tied_as_published_unless_said_otherwise(name: str, tied: bool) -> None:
    assert resolve(ModelConfig(name=name)).tied is tied
    assert resolve(ModelConfig(name=name, tie_embeddings=not tied)).tied is not tied


@pytest.mark.parametrize("tied", [True, False])
def test_the_written_config_remembers_whether_embeddings_are_tied(tied: bool) -> None:
    made = resolve(ModelConfig(config=LLAMA, tie_embeddings=tied))
    again = Architecture.from_yaml(made.to_yaml())
    assert again.tied is tied
    assert {**again.fields, "hf_config": {}} == {**made.fields, "hf_config": {}}


def test_litgpt_reads_the_written_config() -> None:
    from litgpt.config import Config

    made = resolve(ModelConfig(config=LLAMA, tie_embeddings=True))
    config = Config(**yaml.safe_load(made.to_yaml()))
    assert config.norm_eps == 1e-5
    assert config.n_query_groups == 2


def test_torch_is_not_needed() -> None:
    code = (
        "import sys; from stream_pretrain.config.sections import ModelConfig;"
        "from stream_pretrain.model.architecture import resolve;"
        "resolve(ModelConfig(name='pythia-14m'));"
        "assert not {'torch', 'litgpt', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def hugging_face_directory(directory: Path, **changes: Any) -> ModelConfig:
    fields = resolve(ModelConfig(config=LLAMA)).fields
    config = {**to_hugging_face(fields, tied=False, dtype="float32"), **changes}
    (directory / "config.json").write_text(json.dumps(config))
    return ModelConfig(init_from=str(directory))


def test_a_hugging_face_directory_says_the_architecture(tmp_path: Path) -> None:
    made = resolve(hugging_face_directory(tmp_path, tie_word_embeddings=True))
    assert made.tied is True
    assert made.fields["n_query_groups"] == 2
    assert made.fields["rope_base"] == 500_000


def test_a_litgpt_directory_says_the_architecture(tmp_path: Path) -> None:
    made = resolve(ModelConfig(config=LLAMA))
    (tmp_path / "model_config.yaml").write_text(made.to_yaml())
    assert resolve(ModelConfig(init_from=str(tmp_path))).fields["n_embd"] == 32


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "mamba"}, "model_type is 'mamba', must be one of"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is set"),
        ({"use_sliding_window": True}, "use_sliding_window is set"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "rope_scaling is 'yarn'"),
        ({"hidden_act": "relu"}, "hidden_act is 'relu', must be 'silu'"),
        ({"attention_bias": True}, "attention_bias and mlp_bias differ"),
        (
            {"model_type": "gpt_neox", "attention_bias": True, "hidden_act": "relu"},
            "hidden_act is 'relu', must be one of",
        ),
        ({"model_type": "gpt_neox", "attention_bias": False}, "attention_bias is false"),
        ({"model_type": "gemma", "hidden_activation": "relu"}, "hidden_activation is 'relu'"),
        ({"model_type": "qwen3", "mlp_bias": True}, "mlp_bias = True (would become False)"),
    ],
)
def test_a_hugging_face_model_that_litgpt_cannot_express_is_refused(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)) as caught:
        resolve(hugging_face_directory(tmp_path, **changes))
    assert caught.value.faults[0].path == "model.init_from"


def test_scaling_as_newer_files_write_it_is_read() -> None:
    fields = resolve(ModelConfig(config=SHAPES["llama linear adjustment"])).fields
    config = to_hugging_face(fields, tied=False, dtype="float32")
    base = config.pop("rope_theta")
    config["rope_parameters"] = {**config.pop("rope_scaling"), "rope_theta": float(base)}
    assert from_hugging_face(config)["rope_base"] == base
    assert from_hugging_face(config)["rope_adjustments"] == {"factor": 2.0}
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": 5.5}
    assert from_hugging_face(config)["rope_adjustments"] is None
    assert from_hugging_face(config)["rope_base"] == 5.5


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        (None, "", "must be a directory with model_config.yaml"),
        ("config.json", "{", "config.json cannot be used"),
        ("config.json", '{"model_type": "llama"}', "config.json cannot be used: 'vocab_size'"),
        ("model_config.yaml", "a: [", "model_config.yaml cannot be used"),
        ("model_config.yaml", "zzz: 1", "LitGPT's Config has no such field"),
    ],
)
def test_a_directory_without_a_usable_config_is_refused(
    file: str | None, text: str, words: str, tmp_path: Path
) -> None:
    if file is not None:
        (tmp_path / file).write_text(text)
    with pytest.raises(ConfigError, match=re.escape(words)):
        resolve(ModelConfig(init_from=str(tmp_path)))
