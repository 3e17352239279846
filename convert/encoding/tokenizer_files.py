"""Find the files of a tokenizer.

`byte`, a path or a Hugging Face name comes in; the files' contents by name come out, with a
`tokenizer.json` among them. The tokenizer is not loaded here.
"""

from __future__ import annotations

import re
from pathlib import Path

from convert.encoding.byte_tokenizer import byte_tokenizer_files
from stream_pretrain.errors import ConfigError

TOKENIZER_FILE = "tokenizer.json"
SENTENCEPIECE_FILE = "tokenizer.model"
COPIED_FILES = (
    TOKENIZER_FILE,
    "tokenizer_config.json",
    SENTENCEPIECE_FILE,
    "special_tokens_map.json",
    "generation_config.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)
HUB_NAME = re.compile(r"(?:[A-Za-z0-9_.-]+/)?[A-Za-z0-9_.-]+")


def tokenizer_files(name: str) -> dict[str, bytes]:
    """Return all files of a tokenizer by name; raise `ConfigError` where there is none."""
    if name == "byte":
        return byte_tokenizer_files()
    path = Path(name).expanduser()
    if path.is_dir():
        return _with_json(_files_of(path), name)
    if path.is_file():
        if path.name in COPIED_FILES:
            return _with_json(_files_of(path.parent), name)
        kind = SENTENCEPIECE_FILE if path.suffix == ".model" else TOKENIZER_FILE
        return _with_json({kind: path.read_bytes()}, name)
    if HUB_NAME.fullmatch(name) and not name.endswith((".json", ".model")):
        return _with_json(_files_of(_hub_folder(name)), name)
    raise _absent(name, "no such file or directory")


def _files_of(folder: Path) -> dict[str, bytes]:
    return {
        file: (folder / file).read_bytes() for file in COPIED_FILES if (folder / file).is_file()
    }


def _with_json(files: dict[str, bytes], name: str) -> dict[str, bytes]:
    """Return the files, with a `tokenizer.json` made from the SentencePiece model if need be."""
    if TOKENIZER_FILE in files:
        return files
    if SENTENCEPIECE_FILE not in files:
        raise ConfigError(
            f"--tokenizer {name}: holds no {TOKENIZER_FILE} and no {SENTENCEPIECE_FILE}. Name "
            "another directory."
        )
    try:
        from gigatoken._load.sentencepiece import sentencepiece_to_tokenizer_json

        converted = sentencepiece_to_tokenizer_json(files[SENTENCEPIECE_FILE])
    except Exception as error:  # ImportError, or whatever its parser raises
        raise ConfigError(
            f"--tokenizer {name}: this SentencePiece model cannot be converted to a "
            f"{TOKENIZER_FILE} ({type(error).__name__}: {error}). BPE models with byte fallback "
            "can, where gigatoken is installed; convert others with transformers first."
        ) from error
    text = converted if isinstance(converted, bytes) else str(converted).encode()
    return {**files, TOKENIZER_FILE: text}


def _hub_folder(name: str) -> Path:
    """Return the local copy, in the library's cache, of a repository's tokenizer files."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=list(COPIED_FILES)))
    except Exception as error:  # the library raises its own, requests' and OS errors
        reason = f"no such file or directory, and not fetched from Hugging Face ({error})"
        raise _absent(name, reason) from error


def _absent(name: str, reason: str) -> ConfigError:
    return ConfigError(
        f"--tokenizer {name}: {reason}. Give `byte`, a {TOKENIZER_FILE}, a directory that holds "
        "one, or make one: convert-mds tokenizer --input TEXT --vocab_size 32000 --out DIR"
    )
