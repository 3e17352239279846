"""A quick look at a checkpoint: same seed, same text, and the context is never overrun."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
import torch
from export_shapes import trained

from stream_pretrain.export.exported_tokenizer import ExportedTokenizer
from stream_pretrain.export.generate import Sampling, generate_ids
from stream_pretrain.export.trained_model import TrainedModel

PROMPT = [72, 105, 33]


def sample(source: TrainedModel, prompt: Sequence[int] = PROMPT, **settings: float) -> list[int]:
    values = {"max_tokens": 12, "temperature": 1.0, "top_k": 0, "seed": 1, **settings}
    return list(generate_ids(source, prompt, Sampling(**values)))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["gpt_neox", "gemma3_text"])
def test_greedy_text_is_what_the_whole_forward_pass_says(name: str) -> None:
    source = trained(name)
    new = sample(source, temperature=0)
    network = source.network()
    ids = list(PROMPT)
    with torch.no_grad():
        for token in new:
            assert token == int(network(torch.tensor([ids]))[0, -1, :257].argmax())
            ids.append(token)


def test_a_seed_decides_the_text() -> None:
    source = trained("llama")
    assert sample(source, seed=1) == sample(source, seed=1) != sample(source, seed=2)


def test_temperature_and_top_k_change_the_text() -> None:
    source = trained("llama")
    greedy = sample(source, temperature=0)
    assert sample(source, top_k=1) == greedy
    assert sample(source, temperature=1e-4) == greedy
    assert sample(source, temperature=10.0) != greedy


def test_the_number_of_tokens_and_the_context_are_limits() -> None:
    source = trained("llama")
    assert len(sample(source, max_tokens=5)) <= 5
    assert len(sample(source, max_tokens=1000)) <= 64 - len(PROMPT)
    assert len(sample(source, [1] * 200, max_tokens=5)) == 1


def test_ids_that_the_tokenizer_does_not_have_are_never_chosen() -> None:
    new = sample(trained("llama"), max_tokens=60, temperature=100.0)
    assert max(new) < 257


def test_text_ends_at_end_of_text() -> None:
    source = trained("llama")
    with torch.no_grad():
        source.weights["lm_head.weight"][:256] *= 1e-3
        source.weights["lm_head.weight"][256] *= 100
    lengths = [len(sample(source, seed=seed, max_tokens=30)) for seed in range(4)]
    assert min(lengths) < 30
    assert all(256 not in sample(source, seed=seed, max_tokens=30) for seed in range(4))


def test_an_empty_prompt_starts_from_end_of_text() -> None:
    source = trained("llama")
    assert sample(source, [], temperature=0) == sample(source, [256], temperature=0)
    bare = trained("llama", tokenizer=False)
    assert sample(bare, [], temperature=0) == sample(bare, [0], temperature=0)


def test_a_tokenizer_without_a_config_gets_one() -> None:
    whole = trained("llama").tokenizer
    assert whole is not None
    bare = ExportedTokenizer.of({"tokenizer.json": whole.files["tokenizer.json"]})
    config = json.loads(bare.files["tokenizer_config.json"])
    assert config["eos_token"] == "<|endoftext|>"
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert (bare.eos_id, bare.bos_id, bare.vocab_size) == (256, None, 257)


def test_a_token_written_as_an_object_is_understood() -> None:
    whole = trained("llama").tokenizer
    assert whole is not None
    config = {"eos_token": {"content": "a"}, "tokenizer_class": "X"}
    files = {**whole.files, "tokenizer_config.json": json.dumps(config).encode()}
    assert ExportedTokenizer.of(files).eos_id == 97
