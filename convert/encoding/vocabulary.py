"""Load the tokenizer of a job.

`byte`, a file, a directory or a Hugging Face name comes in, and a `Vocabulary` comes out. It holds
the tokenizer's files unchanged; its fingerprint is a hash of `tokenizer.json`. No text is encoded
here.
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

COMMON_EOS_TOKENS = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "<|end▁of▁sentence|>",
    "[EOS]",
)
COMMON_BOS_TOKENS = ("<|begin_of_text|>", "<s>", "<bos>", "<|begin▁of▁sentence|>", "[BOS]")


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """A tokenizer, and the tokens that begin and end a document.

    `vocab_size` is one more than the largest id, special tokens included. `eos_id` and `bos_id` are
    None where no such token is set.
    """

    name: str
    files: Mapping[str, bytes]
    vocab_size: int
    fingerprint: str
    special_tokens: Mapping[str, int]
    eos_id: int | None
    bos_id: int | None

    @property
    def dtype(self) -> TokenDtype:
        """The type of a stored id: uint16 where every id fits."""
        return "uint16" if self.vocab_size <= 1 << 16 else "uint32"

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The type of a stored id as a NumPy dtype, little-endian."""
        return np.dtype("<u2" if self.dtype == "uint16" else "<u4")

    @property
    def is_bytes(self) -> bool:
        """True for the built-in byte tokenizer, whose ids are the bytes themselves."""
        return self.files[TOKENIZER_FILE] == byte_tokenizer_files()[TOKENIZER_FILE]

    def tokenizer(self) -> Tokenizer:
        """Return a new `tokenizers.Tokenizer`."""
        from tokenizers import Tokenizer

        return Tokenizer.from_str(self.files[TOKENIZER_FILE].decode())


def load_vocabulary(name: str, *, eos: str = "auto", bos: str = "none") -> Vocabulary:
    """Find and load the tokenizer `name`; raise `ConfigError` where that fails."""
    return build_vocabulary(name, tokenizer_files(name), eos=eos, bos=bos)


def build_vocabulary(name: str, files: Mapping[str, bytes], *, eos: str, bos: str) -> Vocabulary:
    """Return the `Vocabulary` of a tokenizer's files; raise `ConfigError` where they give none."""
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
        eos_id=_special_token_id("eos", eos, files, ids, COMMON_EOS_TOKENS),
        bos_id=_special_token_id("bos", bos, files, ids, COMMON_BOS_TOKENS),
    )


def _special_token_id(
    which: str,
    wanted: str,
    files: Mapping[str, bytes],
    ids: Mapping[str, int],
    common: tuple[str, ...],
) -> int | None:
    """Return the id of the token that ends (or begins) a text; None where `wanted` is `none`."""
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
    for token in (named, *common):
        if token is not None and token in ids:
            return ids[token]
    raise ConfigError(
        f"--{which} auto: the tokenizer names no {which} token and has none of "
        f"{', '.join(common)}. Name one: --{which} TOKEN, or --{which} none."
    )


def _named_token(key: str, files: Mapping[str, bytes]) -> str | None:
    """Return the token that `tokenizer_config.json` or `special_tokens_map.json` has for `key`."""
    for file in ("tokenizer_config.json", "special_tokens_map.json"):
        if file in files:
            value = json.loads(files[file]).get(key)
            content = value.get("content") if isinstance(value, dict) else value
            if isinstance(content, str):
                return content
    return None
