"""Find and build the model that the `model` section names.

`model.name: "module:factory"` selects the user's own code (see `protocol`); everything else is
LitGPT's. Every failure is a `ConfigError`. Trains nothing and loads no checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import yaml  # type: ignore[import-untyped]

from stream_pretrain.config.sections import ModelConfig
from stream_pretrain.errors import ConfigError, Fault
from stream_pretrain.model.architecture import Architecture
from stream_pretrain.model.litgpt_definition import LitGPTDefinition
from stream_pretrain.model.protocol import SETTINGS, ForwardSettings, ModelDefinition
from stream_pretrain.schema import ModelFacts
from stream_pretrain.user_code import call_user_code, is_user_code, load_user_code

if TYPE_CHECKING:
    from stream_pretrain.config.sections import Config

_T = TypeVar("_T")

_DEFINITION_MEMBERS = ("supports", "facts", "build")
_NETWORK_MEMBERS = ("forward", "blocks", "reset_buffers", "init_weights")
_FACTORY_KEY = "factory"
_SEE = "see stream_pretrain/model/protocol.py"


def find_model(model: ModelConfig) -> ModelDefinition:
    """Return the definition of the model that the section names.

    Raises:
        ConfigError: there is no such model, its fields contradict one another, or the user's
            factory cannot be imported or called.
    """
    if model.name is None or not is_user_code(model.name):
        return LitGPTDefinition.of(model)
    factory = load_user_code(model.name, path="model.name")
    definition: ModelDefinition = _call(model.name, lambda: factory(model))
    _check_members(model.name, definition, _DEFINITION_MEMBERS, "a ModelDefinition")
    if unknown := sorted(set(definition.supports) - set(SETTINGS)):
        remedy = f"its supports has {unknown[0]}, must be of {', '.join(SETTINGS)}"
        raise _refused(model.name, remedy)
    return definition


def setting_faults(config: Config, definition: ModelDefinition) -> list[Fault]:
    """Return a fault for each setting that the model does not support."""
    faults = []
    for path in SETTINGS:
        section = getattr(config, path.split(".")[0])
        key = path.split(".")[1]
        value = getattr(section, key)
        if path in definition.supports or value == type(section).model_fields[key].default:
            continue
        remedy = (
            f"{config.model.name} does not support it (it is not in its `supports`); leave it out"
        )
        faults.append(Fault(path=path, found=str(value), remedy=remedy))
    return faults


def model_facts(model: ModelConfig, *, seq_len: int | None = None) -> ModelFacts:
    """Return the sizes of the network that `build_model` would make; takes no memory for weights.

    Raises:
        ConfigError: as `find_model`, and where the user's code fails.
    """
    definition = find_model(model)
    name = str(model.name)
    facts: Any = _call(name, lambda: definition.facts(seq_len=seq_len))
    if not isinstance(facts, ModelFacts):
        raise _refused(name, f"facts() returned a {type(facts).__name__}, must return ModelFacts")
    return facts


def build_model(
    model: ModelConfig,
    *,
    seed: int,
    seq_len: int | None = None,
    settings: ForwardSettings | None = None,
    device: torch.device | str = "cpu",
    init_weights: bool = True,
) -> Any:
    """Return the network (a `LanguageModel`) with its first weights.

    They are drawn from the seed or read from `model.init_from`. `init_weights` False: storage whose
    values a checkpoint will give. On the meta device there is no storage: call `reset_buffers` and
    `init_weights` of the network once there is. `seq_len` bounds the length of sequences (None: the
    model's context).
    """
    network = build_on_meta(find_model(model), settings, seq_len=seq_len, name=str(model.name))
    if torch.device(device).type != "meta":
        network.to_empty(device=device)
        network.reset_buffers()
        if init_weights:
            network.init_weights(seed=seed)
    return network


def build_on_meta(
    definition: ModelDefinition,
    settings: ForwardSettings | None = None,
    *,
    seq_len: int | None = None,
    name: str,
) -> Any:
    """Return the network (a `LanguageModel`) on the meta device: shapes without storage."""

    def build() -> Any:
        with torch.device("meta"):
            return definition.build(settings or ForwardSettings(), seq_len=seq_len)

    network = _call(name, build)
    if not isinstance(network, torch.nn.Module):
        remedy = f"build() returned a {type(network).__name__}, must return a torch.nn.Module"
        raise _refused(name, remedy)
    _check_members(name, network, _NETWORK_MEMBERS, "a LanguageModel")
    return network


def model_config_file(model: ModelConfig) -> str:
    """Return the text of `model_config.yaml`, which every checkpoint carries.

    For LitGPT's architectures this is LitGPT's own file.
    """
    if is_user_code(model.name):
        content = {_FACTORY_KEY: model.name, "model": model.model_dump(mode="json")}
        return str(yaml.safe_dump(content, sort_keys=True))
    return LitGPTDefinition.of(model).architecture.to_yaml()


def read_model_config_file(text: str | bytes) -> tuple[str, ModelDefinition]:
    """Return the name and the definition of the model that a `model_config.yaml` describes.

    Raises:
        ConfigError: the user's code that it names cannot be imported or called.
    """
    content = yaml.safe_load(text)
    if isinstance(content, dict) and _FACTORY_KEY in content:
        model = ModelConfig(**content["model"])
        return str(model.name), find_model(model)
    architecture = Architecture.from_yaml(text)
    return str(architecture.fields["name"]), LitGPTDefinition(architecture)


def _call(name: str, call: Callable[[], _T]) -> _T:
    """Return `call()`; what the user's code raises becomes a `ConfigError`."""
    if not is_user_code(name):
        return call()
    return call_user_code(call, name=name, path="model.name")


def _check_members(name: str, value: object, members: tuple[str, ...], kind: str) -> None:
    missing = [member for member in members if not hasattr(value, member)]
    if missing:
        remedy = f"{type(value).__name__} is not {kind}: it lacks {', '.join(missing)}; {_SEE}"
        raise _refused(name, remedy)


def _refused(name: str, remedy: str) -> ConfigError:
    return ConfigError.of([Fault(path="model.name", found=repr(name), remedy=remedy)])
