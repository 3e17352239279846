"""Load the user's own code from a configuration value of the form `module:name`.

`optimizer.name` and `model.name` may name code that is not part of this package. The module is
imported as Python imports any module: it must be installed, or its directory must be on PYTHONPATH.
Every failure is a `ConfigError` that names the key, the value and the remedy. Loads no library of
its own accord.
"""

from __future__ import annotations

import difflib
import importlib
import sys
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

from stream_pretrain.errors import ConfigError, Fault

_T = TypeVar("_T")


def is_user_code(name: str | None) -> bool:
    """Whether a configuration value has the form `module:name`."""
    return name is not None and ":" in name


def load_user_code(name: str, *, path: str) -> Callable[..., Any]:
    """Import the callable that `name` stands for; `path` is the configuration key that holds it.

    Raises:
        ConfigError: the form is wrong, the module cannot be imported, or it has no such callable.
    """
    module_name, _, attribute = name.partition(":")
    parts = [*module_name.split("."), attribute]
    if not all(part.isidentifier() for part in parts):
        raise _error(path, name, "must have the form module:name, such as my_package.code:build")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a module runs any code when it is imported
        raise _error(path, name, _import_remedy(module_name, error)) from error
    value = getattr(module, attribute, None)
    if value is None:
        near = difflib.get_close_matches(attribute, vars(module), n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise _error(path, name, f"module {module_name} has no {attribute}{hint}")
    if not callable(value):
        raise _error(
            path,
            name,
            f"{attribute} is of type {type(value).__name__}, must be a function or class",
        )
    loaded: Callable[..., Any] = value
    return loaded


def call_user_code(call: Callable[[], _T], *, name: str, path: str) -> _T:
    """Return `call()`; an exception that the user's code raises becomes a `ConfigError`.

    A `ConfigError` of the user's own passes unchanged.
    """
    try:
        return call()
    except ConfigError:
        raise
    except Exception as error:
        remedy = f"raised {_described(error)}; correct the code"
        raise _error(path, name, remedy) from error


def _import_remedy(module_name: str, error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        if module_name == error.name or module_name.startswith(f"{error.name}."):
            return (
                f"there is no module {error.name}; install it, or put its directory on PYTHONPATH"
            )
        return f"module {module_name} needs {error.name}, which is not installed; install it"
    return f"module {module_name} cannot be imported: {_described(error)}; correct the module"


def _described(error: Exception) -> str:
    """The error's type and text, and the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not f.filename.startswith(("<frozen", sys.prefix))] or frames
    where = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {error}{where}"


def _error(path: str, name: str, remedy: str) -> ConfigError:
    return ConfigError.of([Fault(path=path, found=repr(name), remedy=remedy)])
