"""`export` and `generate` on a real checkpoint, through the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from convert.encoding.byte_tokenizer import byte_tokenizer_files
from stream_pretrain.checkpoint.save import Checkpoints
from stream_pretrain.checkpoint.state import TrainState
from stream_pretrain.cli import main
from stream_pretrain.config.sections import CheckpointConfig, ModelConfig, OptimizerConfig
from stream_pretrain.model.loss import token_loss
from stream_pretrain.model.registry import build_model, model_config_file
from stream_pretrain.optim.build_optimizer import build_optimizer
from stream_pretrain.schema import World
from stream_pretrain.storage.store import open_store

MODEL = ModelConfig(
    config={
        "block_size": 32,
        "n_layer": 2,
        "n_embd": 32,
        "n_head": 2,
        "vocab_size": 257,
        "padding_multiple": 32,
    },
    tie_embeddings=True,
)


def make_run(run: Path, *, extras: dict[str, bytes] | None = None) -> dict[str, torch.Tensor]:
    """A run directory with the checkpoints of steps 1 and 2; the weights of step 2."""
    network = build_model(MODEL, seed=1)
    optimizer = build_optimizer(network, OptimizerConfig(lr=1e-2))
    beside = run.parent / "extras"
    (beside / "tokenizer").mkdir(parents=True)
    if extras is None:
        extras = {"model_config.yaml": model_config_file(MODEL).encode()}
        extras |= {f"tokenizer/{name}": data for name, data in byte_tokenizer_files().items()}
    for name, content in extras.items():
        (beside / name).write_bytes(content)
    saver = Checkpoints(
        run=open_store(run),
        staging=run.parent / "staging",
        config=CheckpointConfig(asynchronous=False),
        world=World(),
        model=network,
        optimizer=optimizer,
        extras=beside,
        before_receipt=lambda: None,
    )
    saver.find("never")
    state = TrainState()
    ids = torch.arange(66).view(2, 33) % 257
    for _ in range(2):
        sums = token_loss(network, ids[:, :-1], ids[:, 1:])
        torch.autograd.backward(sums.objective / sums.tokens)
        optimizer.step()
        optimizer.zero_grad()
        state.step += 1
        state.data_step += 1
        saver.save(state)
    saver.wait()
    saver.close()
    return {name: tensor.clone() for name, tensor in network.state_dict().items()}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, torch.Tensor]]:
    directory = tmp_path_factory.mktemp("trained") / "run"
    return directory, make_run(directory)


Run = tuple[Path, dict[str, torch.Tensor]]


def test_the_newest_checkpoint_becomes_a_litgpt_directory(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "lit"
    assert main(["export", str(run[0]), "--format", "litgpt", "--out", str(out)]) == 0
    assert "Wrote step 2 to" in capsys.readouterr().out
    weights = torch.load(out / "lit_model.pth", weights_only=True)
    assert all(torch.equal(weights[name], value) for name, value in run[1].items())
    head, embedding = weights["lm_head.weight"], weights["transformer.wte.weight"]
    assert head.data_ptr() == embedding.data_ptr()
    assert {"tokenizer.json", "tokenizer_config.json"} <= {p.name for p in out.iterdir()}


def test_a_chosen_step_becomes_a_hugging_face_directory(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "hf"
    words = ["export", str(run[0]), "--format", "huggingface", "--out", str(out)]
    assert main([*words, "--step", "1", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["step"] == 1
    assert facts["files"] == sorted(path.name for path in out.iterdir())
    assert facts["largest_logit_difference"] < 1e-3
    assert json.loads((out / "config.json").read_text())["tie_word_embeddings"] is True


def test_text_is_generated_and_the_seed_decides_it(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["generate", str(run[0]), "--prompt", "ab", "--max_tokens", "8"]
    texts = []
    for seed in ("1", "1", "2"):
        assert main([*words, "--seed", seed, "--json"]) == 0
        texts.append(json.loads(capsys.readouterr().out)["text"])
    assert texts[0] == texts[1] != texts[2]
    assert texts[0].startswith("ab")


def test_text_appears_as_it_is_made(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["generate", str(run[0]), "--prompt", "ab", "--max_tokens", "8", "--seed", "1"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    assert shown == json.loads(capsys.readouterr().out)["text"] + "\n"


def test_a_step_that_is_not_there_is_named(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["export", str(run[0]), "--format", "litgpt", "--out", str(tmp_path / "x")]
    assert main([*words, "--step", "9"]) == 1
    assert "no checkpoint of step 9 (there are: 1, 2)" in capsys.readouterr().err


def test_a_run_without_a_tokenizer_generates_nothing_and_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = model_config_file(MODEL).encode()
    make_run(tmp_path / "run", extras={"model_config.yaml": config})
    assert main(["generate", str(tmp_path / "run")]) == 2
    assert "has no tokenizer; set data.tokenizer" in capsys.readouterr().err
    words = ["export", str(tmp_path / "run"), "--format", "litgpt", "--out", str(tmp_path / "o")]
    assert main(words) == 0
    assert "The run had no tokenizer" in capsys.readouterr().out


def test_a_checkpoint_without_an_architecture_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "run", extras={"tokenizer/tokenizer.json": b"{}"})
    assert main(["generate", str(tmp_path / "run")]) == 1
    assert "model_config.yaml: absent, so the architecture is unknown" in capsys.readouterr().err


@pytest.mark.slow
def test_litgpt_itself_generates_from_the_directory(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "lit"
    assert main(["export", str(run[0]), "--format", "litgpt", "--out", str(out)]) == 0
    command = [str(Path(sys.executable).with_name("litgpt")), "generate", str(out)]
    command += ["--prompt", "ab", "--max_new_tokens", "5", "--precision", "32-true"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert "ab" in done.stdout
