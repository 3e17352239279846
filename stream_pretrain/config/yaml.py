"""Read and write YAML 1.2, and record the line of each key.

`1e9` and `3e-4` are numbers, `no` and `1:30:00` are text (PyYAML reads YAML 1.1, where they are
not). Dates are read as text; tags and merge keys are refused.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from stream_pretrain.errors import ConfigError, Fault

KeyPath = tuple[str, ...]

_TAG = "tag:yaml.org,2002:"
_AS_TEXT = {f"{_TAG}{kind}" for kind in ("str", "timestamp", "value")}
_AS_SCALAR = {f"{_TAG}{kind}" for kind in ("int", "float", "bool", "null")}


@dataclass(frozen=True, kw_only=True)
class YamlDocument:
    """The `value` of a file, and the file and line of each key path (`run.yaml:12`)."""

    value: Any
    locations: Mapping[KeyPath, str] = field(default_factory=dict)


def load_yaml(path: str | Path) -> Any:
    """Return the value of a YAML file; raise ConfigError if it cannot be read."""
    return read_document(path).value


def read_document(path: str | Path) -> YamlDocument:
    """Return the value of a YAML file and the line of each key.

    Raises:
        ConfigError: the file cannot be read.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise _fault(str(path), "", "no such file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise _fault(str(path), "", f"cannot be read ({error})") from error
    return parse_document(text, source=str(path))


def parse_document(text: str, *, source: str) -> YamlDocument:
    """Parse YAML text; `source` names it in locations and messages.

    Raises:
        ConfigError: the text is not valid YAML, or has tags or duplicate keys.
    """
    try:
        root = _yaml().compose(io.StringIO(text))
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        location = f"{source}:{mark.line + 1}" if mark else source
        raise _fault(location, "", f"not valid YAML ({error.problem or error.context})") from error
    except YAMLError as error:
        raise _fault(source, "", f"not valid YAML ({error})") from error
    if root is None:
        return YamlDocument(value=None)
    locations: dict[KeyPath, str] = {}
    value = _Reader(source, locations).value(root, ())
    return YamlDocument(value=value, locations=locations)


def parse_scalar(text: str) -> Any:
    """Parse one YAML scalar: `3e-4` is a float, `true` a bool, `null` None, all else text."""
    resolver = _yaml().resolver
    tag = resolver.resolve(ScalarNode, text, (True, False))
    return _construct(ScalarNode(tag, text)) if str(tag) in _AS_SCALAR else text


def dump_yaml(value: Any) -> str:
    """Return plain values as block-style YAML, keys in their order; `load_yaml` reads them back."""
    yaml = _yaml()
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.width = 1 << 16
    stream = io.StringIO()
    yaml.dump(value, stream)
    return stream.getvalue()


@dataclass(frozen=True)
class _Reader:
    """Convert nodes to values, and record the file and line of each key."""

    source: str
    locations: dict[KeyPath, str]

    def value(self, node: Node, path: KeyPath, above: tuple[Node, ...] = ()) -> Any:
        self.locations[path] = self._location(node)
        if node in above:
            raise _fault(self._location(node), "", "holds an alias of itself")
        above = (*above, node)
        if isinstance(node, MappingNode):
            return dict(self._pairs(node, path, above))
        if isinstance(node, SequenceNode):
            items = enumerate(node.value)
            return [self.value(item, (*path, str(i)), above) for i, item in items]
        if str(node.tag) in _AS_TEXT:
            return node.value
        if str(node.tag) not in _AS_SCALAR:
            raise _fault(self._location(node), str(node.tag), "tags and merge keys are not read")
        return _construct(node)

    def _pairs(
        self, node: MappingNode, path: KeyPath, above: tuple[Node, ...]
    ) -> Iterator[tuple[str, Any]]:
        seen: set[str] = set()
        for key_node, value_node in node.value:
            key = key_node.value if isinstance(key_node, ScalarNode) else None
            if key is None or str(key_node.tag) == f"{_TAG}merge":
                shown = "<<" if key else "a list or mapping"
                raise _fault(self._location(key_node), shown, "a key must be plain text")
            if key in seen:
                raise _fault(self._location(key_node), f"a second '{key}'", "leave one of them out")
            seen.add(key)
            below = (*path, key)
            yield key, self.value(value_node, below, above)
            self.locations[below] = self._location(key_node)

    def _location(self, node: Node) -> str:
        return f"{self.source}:{node.start_mark.line + 1}"


def _yaml() -> YAML:
    return YAML(typ="safe", pure=True)


def _construct(node: Node) -> Any:
    return _yaml().constructor.construct_object(node)


def _fault(path: str, found: str, remedy: str) -> ConfigError:
    return ConfigError.of([Fault(path=path, found=found, remedy=remedy)])
