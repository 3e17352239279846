"""Complete a tokenizer's files for LitGPT and transformers.

`tokenizer.json` is copied byte for byte, so ids do not change. `tokenizer_config.json` is created
or completed, since LitGPT and transformers learn from it which token ends a text.
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
_EOS_TOKENS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|end▁of▁sentence|>", "[EOS]")
_BOS_TOKENS = ("<|begin_of_text|>", "<s>", "<bos>", "<|begin▁of▁sentence|>", "[BOS]")


@dataclass(frozen=True, kw_only=True)
class ExportedTokenizer:
    """A tokenizer as it is exported.

    `files`: content by name, complete for LitGPT and transformers. `eos_id` and `bos_id` are None
    where there is no such token.
    """

    files: Mapping[str, bytes]
    vocab_size: int
    eos_id: int | None
    bos_id: int | None

    @classmethod
    def of(cls, files: Mapping[str, bytes]) -> ExportedTokenizer:
        """Return the tokenizer in these files, with `tokenizer_config.json` completed."""
        config: dict[str, Any] = json.loads(files.get(CONFIG_FILE, b"{}"))
        tokenizer = _load(files)
        known = tokenizer.get_vocab(with_added_tokens=True)
        eos = _special_token(config, "eos_token") or next(
            (t for t in _EOS_TOKENS if t in known), None
        )
        bos = _special_token(config, "bos_token") or next(
            (t for t in _BOS_TOKENS if t in known), None
        )
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
        """Return a new `tokenizers.Tokenizer`."""
        return _load(self.files)


def _load(files: Mapping[str, bytes]) -> Tokenizer:
    from tokenizers import Tokenizer

    return Tokenizer.from_str(files[TOKENIZER_FILE].decode())


def _special_token(config: Mapping[str, Any], key: str) -> str | None:
    token = config.get(key)
    if isinstance(token, Mapping):
        token = token.get("content")
    return None if token is None else str(token)
