"""A model that LitGPT does not have trains, resumes and generates through the public seam."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_runs import ForkedRuns, Kill
from model.own_model import VALUES
from runs import assert_same, steps
from small import fit_arguments

from stream_pretrain.checkpoint.read_model import read_model_state
from stream_pretrain.cli import main
from stream_pretrain.config.sections import ModelConfig
from stream_pretrain.errors import ConfigError
from stream_pretrain.model import protocol
from stream_pretrain.model.registry import build_model, find_model, model_facts
from stream_pretrain.storage.store import open_store

OWN: dict[str, object] = {
    "model__name": "model.own_model:running_mean",
    "model__config": VALUES,
    "stop__max_epochs": 2,
    # saved at once, so that the checkpoint is there when the process is killed
    "checkpoint__asynchronous": False,
}


def section(name: str = "running_mean", **changes: Any) -> ModelConfig:
    return ModelConfig(name=f"model.own_model:{name}", config=VALUES, **changes)


@pytest.fixture(scope="module")
def whole(forked_runs: ForkedRuns, dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody interrupts."""
    root = tmp_path_factory.mktemp("own")
    done = forked_runs.run(fit_arguments(dataset, root / "run", **OWN), root / "log")
    assert done.code == 0, done.log
    return root / "run"


def test_it_learns(whole: Path) -> None:
    losses = [numbers["loss"] for _, numbers in sorted(steps(whole).items())]
    assert len(losses) == 30
    assert losses[-1] < losses[0] - 1


def test_a_killed_run_ends_with_the_same_digest_and_weights(
    forked_runs: ForkedRuns, dataset: Path, whole: Path, tmp_path: Path
) -> None:
    arguments = fit_arguments(dataset, tmp_path / "run", **OWN)
    for count in (8, 9):
        killed = forked_runs.run(arguments, tmp_path / "log", kill=Kill("updated", count))
        assert killed.code == -9, killed.log
    done = forked_runs.run(arguments, tmp_path / "log")
    assert done.code == 0, done.log
    assert_same(tmp_path / "run", whole)


def test_two_ranks_shard_its_blocks_and_resume_exactly(
    forked_runs: ForkedRuns, dataset: Path, whole: Path, tmp_path: Path
) -> None:
    settings = {**OWN, "compute__strategy": "fsdp2", "compute__devices": 2}
    for name, kill in (("straight", None), ("killed", Kill("updated", 8)), ("killed", None)):
        (tmp_path / name).mkdir(exist_ok=True)
        arguments = fit_arguments(dataset, tmp_path / name / "run", **settings)
        done = forked_runs.run(arguments, tmp_path / name / "log", ranks=2, kill=kill)
        assert done.codes == ([0, 0] if kill is None else [-9, -9]), done.log
    assert_same(tmp_path / "killed" / "run", tmp_path / "straight" / "run")
    sharded, alone = steps(tmp_path / "straight" / "run"), steps(whole)
    assert [s["digest"] for s in sharded.values()] == [s["digest"] for s in alone.values()]
    losses = [s["loss"] for s in alone.values()]
    assert [s["loss"] for s in sharded.values()] == pytest.approx(losses, abs=1e-4)


def test_first_weights_are_a_function_of_the_seed() -> None:
    first, again, other = (build_model(section(), seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["lm_head.weight"], other["lm_head.weight"])
    assert first["embedding.weight"].data_ptr() == first["lm_head.weight"].data_ptr()


def test_generate_builds_it_again_from_the_checkpoint(
    whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["generate", str(whole), "--prompt", "the ", "--max_tokens", "6", "--temperature", "0"]
    assert main([*words, "--json"]) == 0
    text = json.loads(capsys.readouterr().out)["text"]
    network = build_model(section(), seed=0)
    network.load_state_dict(read_model_state(open_store(whole))[0])
    ids = list(b"the ")
    with torch.no_grad():
        for _ in range(6):
            ids.append(int(network(torch.tensor([ids]))[0, -1].argmax()))
    assert text == bytes(ids).decode()


@pytest.mark.parametrize("form", ["litgpt", "huggingface"])
def test_export_says_that_it_is_not_litgpts(
    form: str, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["export", str(whole), "--format", form, "--out", str(tmp_path / "out")]
    assert main(words) == 2
    message = capsys.readouterr().err
    assert "model.own_model:running_mean, which is not a LitGPT architecture" in message
    assert "read_model_state" in message
    assert list(tmp_path.iterdir()) == []


def test_the_data_of_its_run_can_be_replayed(
    whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(whole), "--json"]) == 0
    digest = json.loads(capsys.readouterr().out)["digest"]
    assert digest == max(steps(whole).items())[1]["digest"]


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("no.such.module:build", "there is no module no; install it, or put its directory on PYTH"),
        ("model.own_modle:x", "there is no module model.own_modle; install it"),
        ("model.own_model:running_maen", "has no running_maen; did you mean running_mean?"),
        ("model.own_model:not_callable", "not_callable is of type int, must be a function or"),
        ("model.own_model:", "must have the form module:name"),
        ("model.own_model:raises", "raised RuntimeError: no luck ("),
        ("model.own_model:lacks_everything", "it lacks supports, facts, build; see stream_pre"),
        ("model.own_model:unknown_setting", "its supports has model.tied, must be of model.init"),
        ("model.own_model:wrong_facts", "facts() returned a dict, must return ModelFacts"),
        ("model.own_model:no_module", "build() returned a NoneType, must return a torch.nn.Modu"),
        ("model.own_model:no_blocks", "it lacks blocks, reset_buffers, init_weights; see"),
    ],
)
def test_what_is_wrong_with_the_users_code_is_a_fault_of_the_configuration(
    name: str, remedy: str
) -> None:
    model = ModelConfig(name=name, config=VALUES)
    with pytest.raises(ConfigError, match=re.escape(remedy)) as caught:
        model_facts(model)
        build_model(model, seed=0)
    assert [(f.path, f.found) for f in caught.value.faults] == [("model.name", repr(name))]


def test_a_module_that_fails_when_it_is_imported_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_module.py").write_text("x = 1\n1 / 0\n")
    (tmp_path / "needs_other.py").write_text("import not_there_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    words = r"cannot be imported: ZeroDivisionError: .*broken_module.py, line 2\); correct"
    with pytest.raises(ConfigError, match=words):
        find_model(ModelConfig(name="broken_module:x"))
    with pytest.raises(ConfigError, match="module needs_other needs not_there_at_all"):
        find_model(ModelConfig(name="needs_other:x"))


def test_all_faults_come_together_and_name_what_the_model_does_not_support(
    forked_runs: ForkedRuns, dataset: Path, tmp_path: Path
) -> None:
    changes = {
        **OWN,
        "model__tie_embeddings": True,
        "model__document_mask": True,
        "loss__z_loss": 0.1,
        "compute__activation_checkpointing": True,
        "optimizer__name": "torch.optim.AdamX",
    }
    done = forked_runs.run(fit_arguments(dataset, tmp_path / "run", **changes), tmp_path / "log")
    assert done.code == 2
    assert "5 faults" in done.log
    for key in (
        "model.tie_embeddings is True",
        "model.document_mask is True",
        "loss.z_loss is 0.1",
        "compute.activation_checkpointing is True",
    ):
        assert f"{key}: model.own_model:running_mean does not support it" in done.log
    assert "did you mean torch.optim.Adam" in done.log


def test_a_factorys_own_faults_come_with_the_others(
    forked_runs: ForkedRuns, dataset: Path, tmp_path: Path
) -> None:
    changes = {**OWN, "model__config": {"width": 4}, "optimizer__name": "torch.optim.AdamX"}
    done = forked_runs.run(fit_arguments(dataset, tmp_path / "run", **changes), tmp_path / "log")
    assert done.code == 2
    assert "2 faults" in done.log
    assert "model.config.context: must be given" in done.log


def test_the_example_in_the_documentation_trains(dataset: Path, tmp_path: Path) -> None:
    """It is run with the imports and the numbers that it leaves out."""
    text = inspect.cleandoc(protocol.__doc__ or "")
    blocks = re.findall(r"(?m)^(?:    .*\n|\n)+", text)
    code = "\n".join(textwrap.dedent(block) for block in blocks if "class Bigram" in block)
    code = code.replace("ModelFacts(...)", FACTS)
    (tmp_path / "my_models.py").write_text(IMPORTS + code)
    values = {"vocab_size": 257, "width": 32}
    changes = {**OWN, "model__name": "my_models:bigram", "model__config": values}
    arguments = fit_arguments(dataset, tmp_path / "run", **changes, stop__max_steps=3)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-W", "ignore", "-m", "stream_pretrain.cli", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(steps(tmp_path / "run")) == 3


IMPORTS = """
import torch
from torch import nn
from stream_pretrain.model.init_weights import initialize
from stream_pretrain.model.loss import loss_sums
from stream_pretrain.schema import ModelFacts
"""
FACTS = """ModelFacts(
    name="bigram", vocab_size=self.vocab_size, padded_vocab_size=self.vocab_size, block_size=64,
    parameters=1, parameters_without_embeddings=1, layers=1, flops_per_token=1.0,
)"""
