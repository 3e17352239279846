"""Texts -> token ids. In: a list of strings. Out: all ids in one array and the number of ids of each text.

Special tokens are never added here. Strings in a text that look like special tokens are plain text unless the job
says otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from convert.vocabulary import Vocabulary

Encoded = tuple[NDArray[Any], NDArray[np.int64]]


class Encoder(Protocol):
    """What turns texts into ids; `name` goes into the card."""

    name: str

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Ids [all] and lengths [texts]."""
        ...


@dataclass
class ByteEncoder:
    """The built-in byte tokenizer: UTF-8 bytes are ids."""

    name: str = "bytes"

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Ids are the bytes of the texts."""
        pieces = [text.encode() for text in texts]
        lengths = np.fromiter(map(len, pieces), dtype=np.int64, count=len(pieces))
        return np.frombuffer(b"".join(pieces), dtype=np.uint8), lengths


@dataclass
class TokenizersEncoder:
    """Hugging Face `tokenizers`, the definition of what the ids are."""

    vocabulary: Vocabulary
    special_in_text: str = "plain"
    name: str = "tokenizers"
    _tokenizer: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Load the tokenizer; `plain` turns the matching of special tokens in texts off."""
        self._tokenizer = self.vocabulary.tokenizer()
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = self.special_in_text == "plain"

    def encode(self, texts: Sequence[str]) -> Encoded:
        """One batch."""
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        lists = [encoding.ids for encoding in encodings]
        lengths = np.fromiter(map(len, lists), dtype=np.int64, count=len(lists))
        ids = np.fromiter(chain.from_iterable(lists), dtype=np.uint32, count=int(lengths.sum()))
        return ids, lengths
