"""What is loaded, and when: the heavy libraries stay out until a command needs them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = (
    "torch",
    "lightning",
    "streaming",
    "litgpt",
    "numpy",
    "pyarrow",
    "obstore",
    "boto3",
    "rich",
)


def modules_after(code: str) -> set[str]:
    """Top-level modules of a fresh process that has run `code`."""
    program = (
        "import sys, json, contextlib, io\n"
        "quiet = io.StringIO()\n"
        "with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):\n"
        "    try:\n"
        f"        exec({code!r})\n"
        "    except SystemExit:\n"
        "        pass\n"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


@pytest.mark.parametrize(
    "argv",
    [
        ["--help"],
        ["--version"],
        ["fit", "--help"],
        ["trace", "--help"],
        ["fit", "--lr", "3"],
        ["fit", "--config", "configs/pythia_160m_1gpu.yaml", "--print_config"],
    ],
)
def test_help_and_bad_configuration_answer_without_a_heavy_library(argv: list[str]) -> None:
    found = modules_after(f"from stream_pretrain.cli import main; main({argv!r})")
    assert not found & set(HEAVY)


@pytest.mark.parametrize(
    "module",
    ["errors", "units", "schema", "config.load_config", "config.sections", "order", "plan",
     "storage.store", "storage.location", "storage.hashing", "observe.observer"],
)  # fmt: skip
def test_the_shared_parts_load_no_torch(module: str) -> None:
    found = modules_after(f"import stream_pretrain.{module}")
    assert not found & {"torch", "lightning", "streaming", "litgpt"}
