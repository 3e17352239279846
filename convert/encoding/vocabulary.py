"""Which tokenizer a job uses. In: `byte`, a file or directory, or a name. Out: `Vocabulary`. Does
not encode text.

A `Vocabulary` holds the tokenizer's files exactly as they were found; its fingerprint is a hash of
`tokenizer.json`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from convert.encoding.byte_tokenizer import byte_tokenizer_files
from convert.encoding.tokenizer_files import TOKENIZER_FILE, tokenizer_files
from stream_pretrain.errors import ConfigError
from stream_pretrain.schema import TokenDtype

if TYPE_CHECKING:
    from tokenizers import Tokenizer

USUAL_ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|end▁of▁sentence|>", "[EOS]")
USUAL_BEGINS = ("<|begin_of_text|>", "<s>", "<bos>", "<|begin▁of▁sentence|>", "[BOS]")


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """A tokenizer and its two rules. `vocab_size` is one more than the largest id, special tokens
    included."""

    name: str
    files: Mapping[str, bytes]
    vocab_size: int
    fingerprint: str
    special_tokens: Mapping[str, int]
    eos_id: int | None
    bos_id: int | None

    @property
    def dtype(self) -> TokenDtype:
        """uint16 where every id fits."""
        return "uint16" if self.vocab_size <= 1 << 16 else "uint32"

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The dtype of a stored id, little-endian."""
        return np.dtype("<u2" if self.dtype == "uint16" else "<u4")

    @property
    def is_bytes(self) -> bool:
        """True for the built-in byte tokenizer, whose ids are the bytes themselves."""
        return self.files[TOKENIZER_FILE] == byte_tokenizer_files()[TOKENIZER_FILE]

    def tokenizer(self) -> Tokenizer:
        """A new `tokenizers.Tokenizer`."""
        from tokenizers import Tokenizer

        return Tokenizer.from_str(self.files[TOKENIZER_FILE].decode())


def load_vocabulary(name: str, *, eos: str = "auto", bos: str = "none") -> Vocabulary:
    """Find the tokenizer `name` and its end-of-text and begin-of-text tokens, or raise
    `ConfigError`."""
    return vocabulary_of(name, tokenizer_files(name), eos=eos, bos=bos)


def vocabulary_of(name: str, files: Mapping[str, bytes], *, eos: str, bos: str) -> Vocabulary:
    """The `Vocabulary` of a tokenizer's files; `ConfigError` where they give none."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_str(files[TOKENIZER_FILE].decode())
    except Exception as error:  # tokenizers raises bare Exception for whatever it cannot read
        raise ConfigError(
            f"--tokenizer {name}: {TOKENIZER_FILE} cannot be read ({error}). "
            "Give a tokenizer.json that the `tokenizers` library loads."
        ) from error
    added = tokenizer.get_added_tokens_decoder()
    specials = {token.content: token_id for token_id, token in added.items() if token.special}
    ids = tokenizer.get_vocab(with_added_tokens=True)
    return Vocabulary(
        name=name,
        files=files,
        vocab_size=max(ids.values()) + 1,
        fingerprint=xxhash.xxh3_128_hexdigest(files[TOKENIZER_FILE]),
        special_tokens=specials,
        eos_id=_rule("eos", eos, files, ids, USUAL_ENDS),
        bos_id=_rule("bos", bos, files, ids, USUAL_BEGINS),
    )


def _rule(
    which: str,
    wanted: str,
    files: Mapping[str, bytes],
    ids: Mapping[str, int],
    usual: tuple[str, ...],
) -> int | None:
    """The id of the token that ends (or begins) a text; None where `wanted` is `none`."""
    if wanted == "none":
        return None
    if wanted != "auto":
        if wanted not in ids:
            raise ConfigError(
                f"--{which} {wanted}: not a token of this tokenizer. Name one of its tokens, or "
                "`none`."
            )
        return ids[wanted]
    named = _named_token(f"{which}_token", files)
    for token in (named, *usual):
        if token is not None and token in ids:
            return ids[token]
    raise ConfigError(
        f"--{which} auto: the tokenizer names no {which} token and has none of "
        f"{', '.join(usual)}. Name one: --{which} TOKEN, or --{which} none."
    )


def _named_token(key: str, files: Mapping[str, bytes]) -> str | None:
    """The token that `tokenizer_config.json` or `special_tokens_map.json` gives for `key`."""
    for file in ("tokenizer_config.json", "special_tokens_map.json"):
        if file in files:
            value = json.loads(files[file]).get(key)
            content = value.get("content") if isinstance(value, dict) else value
            if isinstance(content, str):
                return content
    return None
