"""A tokenizer's files -> what others need beside them. In: file contents. Out: `ExportedTokenizer`.
Does not change ids.

`tokenizer.json` goes out byte for byte. Only `tokenizer_config.json` is made where it is absent,
since LitGPT and transformers learn from it which token ends a text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
_ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|end▁of▁sentence|>", "[EOS]")
_BEGINS = ("<|begin_of_text|>", "<s>", "<bos>", "<|begin▁of▁sentence|>", "[BOS]")


@dataclass(frozen=True, kw_only=True)
class ExportedTokenizer:
    """`files`: name -> content, complete for LitGPT and transformers. Ids are None where there is
    no such token."""

    files: Mapping[str, bytes]
    vocab_size: int
    eos_id: int | None
    bos_id: int | None

    @classmethod
    def of(cls, files: Mapping[str, bytes]) -> ExportedTokenizer:
        """The tokenizer in these files, `tokenizer_config.json` completed."""
        config: dict[str, Any] = json.loads(files.get(CONFIG_FILE, b"{}"))
        tokenizer = _loaded(files)
        known = tokenizer.get_vocab(with_added_tokens=True)
        eos = _named(config, "eos_token") or next((t for t in _ENDS if t in known), None)
        bos = _named(config, "bos_token") or next((t for t in _BEGINS if t in known), None)
        config.setdefault("tokenizer_class", "PreTrainedTokenizerFast")
        for key, token in (("eos_token", eos), ("bos_token", bos)):
            if token is not None:
                config.setdefault(key, token)
        text = json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        return cls(
            files={**files, CONFIG_FILE: text.encode()},
            vocab_size=max(known.values()) + 1,
            eos_id=None if eos is None else known.get(eos),
            bos_id=None if bos is None else known.get(bos),
        )

    def tokenizer(self) -> Tokenizer:
        """A new `tokenizers.Tokenizer`."""
        return _loaded(self.files)


def _loaded(files: Mapping[str, bytes]) -> Tokenizer:
    from tokenizers import Tokenizer

    return Tokenizer.from_str(files[TOKENIZER_FILE].decode())


def _named(config: Mapping[str, Any], key: str) -> str | None:
    token = config.get(key)
    if isinstance(token, Mapping):
        token = token.get("content")
    return None if token is None else str(token)
