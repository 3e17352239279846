"""Each file in `configs/` loads and plans, is described, and its scripts resume after a stop."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from stream_pretrain.config.load_config import load_config
from stream_pretrain.config.reference import main as write_documents
from stream_pretrain.config.reference import readme, schema
from stream_pretrain.config.sections import Config
from stream_pretrain.plan import Plan, plan
from stream_pretrain.schema import ModelFacts, StreamFacts, World

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "configs"
DATA_AND_RUN = ("--data.train", '[{"local": "DATASET"}]', "--run.dir", "RUN")

# file -> (flags before it, flags after it, devices, seq_len, parameters, embeddings, context)
FILES: dict[str, tuple[tuple[str, ...], tuple[str, ...], int, int, int, int, int]] = {
    "demo.yaml": ((), DATA_AND_RUN, 1, 128, 1_315_968, 2048, 128),
    "shakespeare_char_cpu.yaml": ((), DATA_AND_RUN, 1, 64, 873_600, 320, 64),
    "llama_14m_cpu.yaml": ((), (), 1, 512, 13_767_552, 8192, 512),
    "pythia_160m_1gpu.yaml": ((), (), 1, 2048, 162_322_944, 50304, 2048),
    "llama_1b_8gpu.yaml": ((), (), 8, 2048, 1_100_048_384, 32000, 2048),
    "bucket.yaml": (
        ("--config", str(CONFIGS / "pythia_160m_1gpu.yaml")),
        (),
        1,
        2048,
        162_322_944,
        50304,
        2048,
    ),
}


def loaded(name: str) -> Config:
    before, after, *_ = FILES[name]
    argv = [*before, "--config", str(CONFIGS / name), *after]
    return load_config(argv, model=Config, program="stream-pretrain plan").config


def planned(name: str) -> Plan:
    config = loaded(name)
    _, _, devices, seq_len, parameters, embeddings, context = FILES[name]
    facts = [facts_of(stream.label, seq_len, 2_000_000) for stream in config.data.train]
    held = {"validation": [facts_of("validation", seq_len, 10_000)]}
    model = ModelFacts(
        name=name,
        vocab_size=embeddings,
        padded_vocab_size=embeddings,
        block_size=context,
        parameters=parameters,
        parameters_without_embeddings=parameters,
        layers=1,
        flops_per_token=1.0,
    )
    return plan(config, World(world_size=devices, local_world_size=devices), facts, held, model)


def facts_of(name: str, seq_len: int, samples: int) -> StreamFacts:
    return StreamFacts(
        name=name,
        location=name,
        samples=samples,
        row_ids=seq_len + 1,
        shards=1,
        index_digest="0",
    )


def test_every_file_is_tested() -> None:
    assert {path.name for path in CONFIGS.glob("*.yaml")} == FILES.keys()


@pytest.mark.parametrize("name", FILES)
def test_a_file_loads_and_plans(name: str) -> None:
    found = planned(name)
    config = loaded(name)
    assert found.micro_steps * found.micro_batch * FILES[name][2] == config.batch.global_size


@pytest.mark.parametrize("name", FILES)
def test_a_file_says_what_it_costs(name: str) -> None:
    text = (CONFIGS / name).read_text()
    if name != "bucket.yaml":
        for word in ("# Tokens: ", "Memory: ", "# Speed: ", "(estimate"):
            assert word in text
        tokens = f"{planned(name).tokens_per_step:,}"
        rounded = {"1,048,576": "1.05M", "2,097,152": "2.1M"}
        assert f"{rounded.get(tokens, tokens)} a step" in text
    assert text.startswith("# ")


def test_the_shakespeare_file_has_the_figures_of_its_issue() -> None:
    config = loaded("shakespeare_char_cpu.yaml")
    model: Mapping[str, object] = config.model.config or {}
    wanted = {"n_layer": 4, "n_head": 4, "n_embd": 128, "block_size": 64}
    assert {key: model[key] for key in wanted} == wanted
    assert (config.batch.global_size, config.stop.max_steps) == (12, 2000)
    assert config.evaluation.batches is None
    text = (CONFIGS / "shakespeare_char_cpu.yaml").read_text()
    assert "  train:" not in text
    assert "  dir:" not in text


@pytest.mark.parametrize(
    "name", ["llama_14m_cpu.yaml", "pythia_160m_1gpu.yaml", "llama_1b_8gpu.yaml"]
)
def test_the_steps_that_a_file_states_are_those_of_its_plan(name: str) -> None:
    stated = re.search(r"([0-9,]+) steps", (CONFIGS / name).read_text())
    assert stated is not None
    assert int(stated[1].replace(",", "")) == planned(name).total_steps


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_the_parameters_that_the_tests_assume_are_those_of_the_model(name: str) -> None:
    from stream_pretrain.model.registry import model_facts

    facts = model_facts(loaded(name).model)
    _, _, _, _, parameters, embeddings, context = FILES[name]
    found = (facts.parameters, facts.padded_vocab_size, facts.block_size)
    assert found == (parameters, embeddings, context)


def test_the_description_and_the_schema_are_current(tmp_path: Path) -> None:
    remedy = "run: python -m stream_pretrain.config.reference"
    assert (CONFIGS / "README.md").read_text() == readme(CONFIGS, Config), remedy
    assert (CONFIGS / "schema.json").read_text() == schema(Config), remedy
    (tmp_path / "x.yaml").write_text("# yaml-language-server: $schema=s\n# What it is.\n")
    assert write_documents([str(tmp_path)]) == 0
    assert "[`x.yaml`](x.yaml): What it is." in (tmp_path / "README.md").read_text()
    assert "properties" in json.loads((tmp_path / "schema.json").read_text())


def test_the_demo_trains_what_its_configuration_says() -> None:
    packaged = ROOT / "stream_pretrain" / "audit" / "demo.yaml"
    assert packaged.read_text() == (CONFIGS / "demo.yaml").read_text()


def fake(path: Path, text: str) -> None:
    path.write_text(f"#!/usr/bin/env bash\n{text}")
    path.chmod(0o755)


def environment(folder: Path) -> dict[str, str]:
    return {"PATH": f"{folder}:{os.environ['PATH']}", "RUN_DIR": str(folder / "run")}


def test_the_torchrun_script_starts_again_until_the_run_is_finished(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    fake(
        tmp_path / "torchrun",
        f'echo "$@" >> {tmp_path}/calls\n'
        f"code=$([ $(wc -l < {tmp_path}/calls) -lt 3 ] && echo 75 || echo 0)\n"
        f'echo "{{\\"code\\": $code}}" > {tmp_path}/run/stop.json\nexit 1\n',
    )
    script = CONFIGS / "torchrun_1b_8gpu.sh"
    done = subprocess.run(
        [script, "--batch.micro_size", "4"], env=environment(tmp_path), timeout=30
    )
    calls = (tmp_path / "calls").read_text().splitlines()
    assert done.returncode == 0
    assert len(calls) == 3
    assert calls[0].endswith(f"--run.dir {tmp_path}/run --compute.devices 8 --batch.micro_size 4")


def test_the_torchrun_script_reports_an_error_once(tmp_path: Path) -> None:
    fake(tmp_path / "torchrun", f"echo x >> {tmp_path}/calls\nexit 1\n")
    script = CONFIGS / "torchrun_1b_8gpu.sh"
    done = subprocess.run([script], env=environment(tmp_path), timeout=30)
    assert done.returncode == 1
    assert (tmp_path / "calls").read_text() == "x\n"


def test_the_torchrun_script_passes_a_signal_on_and_leaves_with_75(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    fake(
        tmp_path / "torchrun",
        f'trap \'echo "{{\\"code\\": 75}}" > {tmp_path}/run/stop.json; exit 1\' TERM\n'
        f"touch {tmp_path}/started\nwhile :; do sleep 0.05; done\n",
    )
    script = CONFIGS / "torchrun_1b_8gpu.sh"
    with subprocess.Popen([script], env=environment(tmp_path)) as job:
        deadline = time.monotonic() + 30
        while not (tmp_path / "started").exists():
            assert time.monotonic() < deadline, "torchrun has not started"
            time.sleep(0.02)
        job.send_signal(signal.SIGTERM)
        assert job.wait(timeout=30) == 75


@pytest.mark.parametrize(("code", "requeued"), [(75, True), (0, False), (1, False)])
def test_the_slurm_script_asks_for_a_requeue_after_75_alone(
    tmp_path: Path, code: int, requeued: bool
) -> None:
    fake(tmp_path / "srun", f'echo "$@" > {tmp_path}/job\nexit {code}\n')
    fake(tmp_path / "scontrol", f'echo "$@" > {tmp_path}/requeued\n')
    script = CONFIGS / "slurm_1b_2x8gpu.sh"
    slurm = {**environment(tmp_path), "SLURM_JOB_ID": "17", "CONFIGS": str(CONFIGS)}
    done = subprocess.run([script, "--run.dir", "s3://b/r"], env=slurm, timeout=30)
    assert done.returncode == code
    assert (tmp_path / "requeued").exists() == requeued
    job = (tmp_path / "job").read_text().split()
    argv = job[job.index("fit") + 1 :]
    config = load_config(argv, model=Config, program="fit").config
    assert (config.run.dir, config.compute.nodes) == ("s3://b/r", 2)
