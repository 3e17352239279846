"""What the code imports is what `pyproject.toml` asks for, no more and no less."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
OWN = {"stream_pretrain", "convert"}
# distributions whose module has another name
MODULES = {
    "mosaicml-streaming": "streaming",
    "ruamel.yaml": "ruamel",
    "pyyaml": "yaml",
    "python-snappy": "snappy",
    "mlflow-skinny": "mlflow",
    "huggingface-hub": "huggingface_hub",
}
NOT_IMPORTED = {
    "torchvision": "streaming imports it, and it must match torch",
    "tensorboard": "Lightning's logger imports it",
    "wandb": "Lightning's logger imports it",
}
PART_OF = {"pydantic_core": "pydantic", "botocore": "boto3", "awkward": "gigatoken"}


def imported() -> set[str]:
    """Top-level names of every import in both packages, those within functions too."""
    names = set()
    for package in OWN:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    names |= {alias.name.partition(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    names.add(node.module.partition(".")[0])
                elif _loads_by_name(node):
                    names.add(node.args[0].value)  # type: ignore[attr-defined]
    names = {PART_OF.get(name, name) for name in names}
    return names - OWN - set(sys.stdlib_module_names) - {"_typeshed"}


def _loads_by_name(node: ast.AST) -> bool:
    """`import_module("name")`."""
    called = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    if not called or node.func.attr != "import_module":  # type: ignore[attr-defined]
        return False
    return bool(node.args) and isinstance(node.args[0], ast.Constant)  # type: ignore[attr-defined]


def asked_for() -> set[str]:
    """Modules of the declared dependencies and extras, the tests' own aside."""
    text = (ROOT / "pyproject.toml").read_text()
    needed = re.search(r"^dependencies = \[(.*?)^\]", text, re.S | re.M)
    extras = re.search(r"^\[project.optional-dependencies\]\n(.*?)^test = ", text, re.S | re.M)
    assert needed and extras
    names = re.findall(r'"([A-Za-z0-9._-]+?)(?:\[|[><=])', needed[1] + extras[1])
    names += re.findall(r'"([A-Za-z0-9._-]+)"', needed[1])
    return {MODULES.get(name, name) for name in names}


def test_every_import_is_declared_and_every_dependency_imported() -> None:
    assert imported() == asked_for() - set(NOT_IMPORTED)


def test_what_is_installed_satisfies_the_bounds_that_others_break() -> None:
    """Streaming needs transformers below 5."""
    assert int(importlib.metadata.version("transformers").partition(".")[0]) < 5
