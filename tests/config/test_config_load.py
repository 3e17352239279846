"""Files and flags: precedence, merging, and every fault in one message."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import Field, ValidationError

from stream_pretrain.config.fields import keys_of
from stream_pretrain.config.load_config import LoadedConfig, load_config
from stream_pretrain.config.options import PlanOptions
from stream_pretrain.config.sections import Config
from stream_pretrain.config.types import (
    ByteSize,
    Section,
    Settings,
    TrainingDuration,
    parse_training_duration,
)
from stream_pretrain.errors import ConfigError

BASE = """\
run: {dir: runs/a}
model: {name: pythia-14m}
data: {train: [{remote: s3://bucket/web}]}
batch: {global_size: 8}
stop: {max_steps: 100}
optimizer: {lr: 3e-4}
"""


@pytest.fixture
def base(tmp_path: Path) -> str:
    path = tmp_path / "base.yaml"
    path.write_text(BASE)
    return str(path)


def load(*argv: str) -> LoadedConfig[Config]:
    return load_config(argv, model=Config, program="stream-pretrain fit", options=PlanOptions)


def faults(*argv: str) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        load(*argv)
    assert caught.value.exit_code == 2
    return {fault.path: str(fault) for fault in caught.value.faults}


def test_later_files_win_over_earlier_ones_and_flags_over_files(base: str, tmp_path: Path) -> None:
    over = tmp_path / "over.yaml"
    over.write_text("batch: {global_size: 16, micro_size: 4}\nstop: {max_steps: 1e3}\n")
    config = load("--config", base, f"--config={over}", "--batch.global_size", "32").config
    assert (config.batch.global_size, config.batch.micro_size) == (32, 4)
    assert config.stop.max_steps == 1000
    assert config.run.dir == "runs/a"


def test_mappings_merge_and_lists_replace(base: str) -> None:
    streams = '[{"local": "/x"}, {"local": "/y"}]'
    config = load(
        "--config", base, "--data.train", streams, "--model.config", '{"n_layer": 2}',
        "--model.config.n_head", "4",
    ).config  # fmt: skip
    assert [stream.local for stream in config.data.train] == ["/x", "/y"]
    assert config.model.config == {"n_layer": 2, "n_head": 4}


def test_flags_are_parsed_by_the_type_of_their_field(base: str) -> None:
    config = load(
        "--config", base, "--run.name", "123", "--stop.max-time", "1h30m",
        "--stop.max_tokens", "20B", "--compute.compile", "--optimizer.clip_norm", "null",
        "--compute.precision", "32", "--schedule.warmup", "1B tokens", "--run.resume", "500",
        "--optimizer.betas", "[0.9, 0.99]", "--evaluation.every=null",
    ).config  # fmt: skip
    assert config.run.name == "123"
    assert config.stop.max_time == 5400
    assert config.stop.max_tokens == 20 * 10**9
    assert config.compute.compile is True
    assert config.optimizer.clip_norm is None
    assert config.compute.precision == "32-true"
    assert config.schedule.warmup == TrainingDuration(10**9, "tokens")
    assert config.run.resume == 500
    assert config.optimizer.betas == (0.9, 0.99)
    assert config.evaluation.every is None


def test_a_list_flag_may_be_given_again_to_add_an_item(base: str) -> None:
    flags = ("--logging.loggers", "csv", "--logging.loggers", "tensorboard")
    assert load("--config", base, *flags).config.logging.loggers == ("csv", "tensorboard")


def test_a_commands_own_flags_are_kept_apart(base: str) -> None:
    loaded = load("--config", base, "--json", "--print_config")
    assert loaded.options == PlanOptions.model_validate({"json": True})
    assert loaded.print_config
    assert loaded.files == (base,)


def test_every_fault_of_every_kind_is_in_one_message(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(
        "run: {dir: x, resume: sometimes}\n"
        "model: {name: 5}\n"
        "data:\n"
        "  train: [{remote: s3://b/x, locl: y}]\n"
        "  shufle: {}\n"
        "  cache: {limit: 20 apples}\n"
        "batch: {global_size: 8, micro_size: 3}\n"
        "optimizer: {lr: -1, betas: [0.9, 2]}\n"
        "schedule: {kind: cosin}\n"
        "evaluation:\n"
        "compute: {strategy: ddpp, compile: 1}\n"
        "lr: 3\n"
    )
    found = faults(
        "--config", str(path), "--config", "none.yaml", "--stop.max_token", "5", "--lr", "3",
        "--data.workers", "foo", "--data.validation", '[{"x":', "stray", "--stop.max_time",
        "--model.config", "n_layer=2",
    )  # fmt: skip
    expected = {
        "none.yaml": "no such file",
        "--stop.max_token": "no such flag; did you mean --stop.max_tokens?",
        "--lr": "no such flag; did you mean --optimizer.lr?",
        "--data.validation": "not valid JSON (Expecting value at character 7)",
        "--model.config": "must be a JSON mapping",
        "command line": "'stray': not expected here",
        "--stop.max_time": "needs a value",
        "run.resume": "must be auto, never or whole number",
        "model.name": 'is 5: must be text or null; quote it: "5"',
        "data.train.0.locl": "no such key; did you mean data.train.0.local?",
        "data.shufle": "no such key; did you mean data.shuffle?",
        "data.cache.limit": "is '20 apples': must be a size such as",
        "data.workers": "is 'foo': must be a whole number such as",
        "batch.micro_size": "must divide batch.global_size (8); 2 does",
        "optimizer.lr": f"is -1: must be greater than 0 ({path}:8)",
        "optimizer.betas.1": "is 2: must be less than 1",
        "schedule.kind": "did you mean cosine?",
        "compute.strategy": "did you mean ddp?",
        "compute.compile": "must be true or false",
        "lr": "no such key; did you mean optimizer.lr?",
        "stop": "give max_tokens, max_steps, max_epochs or max_time",
    }
    assert found.keys() == expected.keys()
    for key, words in expected.items():
        assert words in found[key]


def test_what_a_person_must_choose_is_asked_for_key_by_key() -> None:
    assert faults().keys() == {
        "run.dir", "data.train", "batch.global_size", "optimizer.lr", "model", "stop",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        ("--run.dir", "hf://x/y", "must be a local path or begin with s3://, gs://, az://"),
        ("--run.dir", "s3:///x", "must name a bucket after s3://"),
        ("--run.dir", "", "must be a path or URL"),
        ("--data.cache.dir", "s3://b/x", "must be a local path"),
        ("--storage.endpoint_url", "minio:9000", "must begin with http:// or https://"),
        ("--data.train", "[]", "must hold at least one"),
        ("--data.train", "[3]", "must be a mapping"),
        ("--batch.global_size", "0", "must be greater than 0"),
        ("--stop.max_tokens", "64MiB", "must be a whole number"),
        ("--schedule.warmup", "20M", "must be steps (100), a fraction"),
        ("--optimizer.lr", ".inf", "finite number"),
        ("--optimizer.options", '{"a": NaN}', "NaN is no JSON number"),
        ("--model", "3", "must be a JSON mapping"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused(base: str, flag: str, value: str, words: str) -> None:
    found = faults("--config", base, flag, value)
    assert words in " ".join(found.values())


@pytest.mark.parametrize(
    "flags",
    [
        ("--run.dir", "s3://KEY:SECRET@b/x"),
        ("--storage.endpoint_url", "https://KEY:SECRET@host"),
        ("--storage.secret_key", "SECRET"),
        ("--run.dir", "https://host/x?X-Amz-Signature=SECRET"),
        ("--data.train", '[{"remote": "s3://KEY:SECRET@b/x"'),
        ("--data.train", '[{"remote": "s3://KEY:SECRET@b/x"}]'),
    ],
)
def test_credentials_are_refused_and_never_shown(base: str, flags: tuple[str, str]) -> None:
    found = str(faults("--config", base, *flags))
    assert "SECRET" not in found


def test_a_file_that_holds_no_sections_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "list.yaml"
    path.write_text("- 1\n")
    assert "must hold sections" in faults("--config", str(path))[str(path)]


def test_the_resolved_configuration_given_back_is_the_same(base: str, tmp_path: Path) -> None:
    flags = ("--stop.max_time", "90m", "--schedule.warmup", "1%", "--schedule.decay", "9B tokens")
    first = load("--config", base, *flags)
    resolved = tmp_path / "resolved.yaml"
    resolved.write_text(first.to_yaml())
    again = load("--config", str(resolved))
    assert again.config == first.config
    assert again.to_yaml() == first.to_yaml()


def test_a_configuration_is_frozen_and_survives_pickling(base: str) -> None:
    config = load("--config", base).config
    with pytest.raises(ValidationError, match="frozen"):
        config.batch.global_size = 3  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(config)) == config


def test_help_lists_every_key_and_leaves(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        load("--help")
    shown = capsys.readouterr().out
    assert left.value.code == 0
    for key in keys_of(Config):
        assert key.path.rpartition("[].")[2] in shown
        assert key.doc, f"{key.path} has no documentation"


@pytest.mark.parametrize(
    ("value", "span"),
    [
        (100, TrainingDuration(100, "steps")),
        (0.01, TrainingDuration(0.01, "fraction")),
        (1.0, TrainingDuration(1.0, "fraction")),
        ("1%", TrainingDuration(0.01, "fraction")),
        ("2B tokens", TrainingDuration(2 * 10**9, "tokens")),
        ("500 steps", TrainingDuration(500, "steps")),
    ],
)
def test_a_training_duration_is_steps_tokens_or_a_fraction(
    value: Any, span: TrainingDuration
) -> None:
    assert parse_training_duration(value) == span
    assert parse_training_duration(span.to_yaml()) == span


@pytest.mark.parametrize("value", ["20M", "101%", 1.5, -1, True, None, "x tokens", ""])
def test_a_training_duration_that_is_ambiguous_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="must be steps"):
        parse_training_duration(value)


class Build(Settings):
    """Another command's settings."""

    input: Annotated[tuple[str, ...], Field(min_length=1, strict=False)]
    """Inputs."""
    out: str
    """Output."""
    shard_size: ByteSize = 64 * 2**20
    """Size of a shard."""


def test_the_loader_serves_other_models_too() -> None:
    argv = ["--input", "a.txt", "--input", "web=b/*.jsonl", "--out", "d", "--shard-size", "1MB"]
    config = load_config(argv, model=Build, program="convert-mds build").config
    assert config.input == ("a.txt", "web=b/*.jsonl")
    assert config.shard_size == 10**6
    with pytest.raises(ConfigError, match="--inptu: no such flag; did you mean --input"):
        load_config(["--inptu", "x"], model=Build, program="convert-mds build")


def test_documentation_of_a_section_is_its_text() -> None:
    assert issubclass(Build, Section)
    assert [key.doc for key in keys_of(Build)] == ["Inputs.", "Output.", "Size of a shard."]
