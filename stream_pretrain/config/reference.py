"""Write the reference of all configuration keys: help text, README tables and JSON Schema.

`python -m stream_pretrain.config.reference [DIR]` writes `README.md` and `schema.json` to DIR
(default: `configs`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import wrap
from typing import Any

from stream_pretrain.config.fields import Key, keys_of
from stream_pretrain.config.types import Section

_HELP_WIDTH = 96
_INTRODUCTION = (
    "# Configurations\n\n"
    "<!-- Written by `python -m stream_pretrain.config.reference` from "
    "`stream_pretrain/config/sections.py`. -->\n\n"
    "One YAML file for `stream-pretrain fit`, `plan` and `selftest`. Every key is also a flag with "
    "the same path (`--batch.global_size 512`); flags override files, and later `--config` "
    "files override earlier ones. Mappings are merged, lists are replaced. On the command line, "
    "lists and mappings are JSON. `--print_config` prints the resolved configuration and exits.\n\n"
    "Files are YAML 1.2: `1e9` and `3e-4` are numbers, `no` is text. Counts are written `1000`, "
    "`1e9`, `20B` (10^9) or `64Ki` (2^10); sizes `64MiB` or `100MB`; durations `90m`, `36h`, "
    "`1h30m`, `1:30:00` or a number of seconds.\n\n"
    "For completion in an editor that knows YAML schemas, begin a file with "
    "`# yaml-language-server: $schema=schema.json`.\n\n"
    "## Files\n\n"
)


def help_text(program: str, model: type[Section], options: type[Section]) -> str:
    """Return the text of `--help`: usage, the command's own flags, then every key with its type."""
    own = "".join(_help_entry(key) for key in keys_of(options))
    keys = "".join(_help_entry(key) for key in keys_of(model))
    return (
        f"usage: {program} [--config FILE]... [--print_config] [--KEY VALUE]...\n\n"
        "  --config FILE  YAML file with any of the keys below; may be given more than once\n"
        "  --print_config  print the resolved configuration and exit\n"
        f"{own}\nKeys, each a flag and a path in the YAML file (lists are JSON as flags):\n\n"
        f"{keys}"
    )


def readme(configs: Path, model: type[Section]) -> str:
    """Return `configs/README.md`: the files with their first comment, then the keys by section."""
    files = "".join(
        f"- [`{path.name}`]({path.name}): {_summary(path)}\n"
        for path in sorted(configs.iterdir())
        if path.suffix in (".yaml", ".sh")
    )
    return _INTRODUCTION + files + "\n" + "".join(_sections(model))


def schema(model: type[Section]) -> str:
    """Return the JSON Schema of a configuration file.

    No key is required, because a configuration may consist of several files.
    """
    document: dict[str, Any] = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    document |= _without_required(model.model_json_schema())
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _without_required(part: Any) -> Any:
    if isinstance(part, dict):
        return {k: _without_required(v) for k, v in part.items() if k != "required"}
    return [_without_required(item) for item in part] if isinstance(part, list) else part


def _help_entry(key: Key) -> str:
    flag = f"  --{key.path}" if "[]" not in key.path else f"      {key.path.partition('[].')[2]}"
    head = f"{flag}  ({key.type}; {_default(key)})\n"
    return head + "".join(f"      {line}\n" for line in wrap(key.doc, _HELP_WIDTH - 6))


def _default(key: Key) -> str:
    return "must be given" if key.required else f"default {json.dumps(key.default)}"


def _sections(model: type[Section]) -> Iterator[str]:
    for name, info in model.model_fields.items():
        section = info.annotation
        if not (isinstance(section, type) and issubclass(section, Section)):
            continue
        about = " ".join((section.__doc__ or "").split())
        yield f"## `{name}`\n\n{about}\n\n| key | value | default | meaning |\n|---|---|---|---|\n"
        for key in keys_of(section):
            default = "**must be given**" if key.required else f"`{json.dumps(key.default)}`"
            meaning = key.doc.replace("|", "\\|")
            yield f"| `{key.path}` | {key.type} | {default} | {meaning} |\n"
        yield "\n"


def _summary(path: Path) -> str:
    """Return the first comment line of a file that is neither a shebang nor an editor's line."""
    for line in path.read_text(encoding="utf-8").splitlines():
        text = line.removeprefix("# ")
        if text != line and not text.startswith("yaml-language-server"):
            return text
    return ""


def main(argv: list[str]) -> int:
    """Write both files."""
    from stream_pretrain.config.sections import Config

    configs = Path(argv[0]) if argv else Path("configs")
    (configs / "README.md").write_text(readme(configs, Config), encoding="utf-8")
    (configs / "schema.json").write_text(schema(Config), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
