"""Encode texts as token ids.

A list of strings comes in; the ids of all texts in one array, and the number of ids of each, come
out. `tokenizers` defines the ids; gigatoken is used where a check shows that it gives the same
ones. Special tokens are never added here, and strings that look like them are plain text unless the
setting `special_in_text` is `parse`.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from convert.config import SpecialInText
from convert.encoding.tokenizer_files import TOKENIZER_FILE
from convert.encoding.vocabulary import Vocabulary

Encoded = tuple[NDArray[Any], NDArray[np.int64]]
EncoderName = Literal["bytes", "gigatoken", "tokenizers"]
REBUILD_AFTER_BYTES = 64 << 20
REBUILD_AT_GROWTH = 192 << 20
STATM = Path("/proc/self/statm")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Encoder(Protocol):
    """Encodes texts."""

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Return the ids [sum of lengths] and the lengths [texts]."""
        ...


class ByteEncoder:
    """The built-in byte tokenizer, whose ids are the UTF-8 bytes."""

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Return the bytes of the texts as ids."""
        pieces = [text.encode() for text in texts]
        lengths = np.fromiter(map(len, pieces), dtype=np.int64, count=len(pieces))
        return np.frombuffer(b"".join(pieces), dtype=np.uint8), lengths


class TokenizersEncoder:
    """The encoder of the Hugging Face `tokenizers` library."""

    def __init__(self, vocabulary: Vocabulary, special: SpecialInText) -> None:
        """Load the tokenizer; `plain` turns the matching of special tokens off."""
        self._tokenizer = vocabulary.tokenizer()
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = special == "plain"

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Encode one batch."""
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        lists = [encoding.ids for encoding in encodings]
        lengths = np.fromiter(map(len, lists), dtype=np.int64, count=len(lists))
        flat = chain.from_iterable(lists)
        return np.fromiter(flat, dtype=np.uint32, count=int(lengths.sum())), lengths


class GigatokenEncoder:
    """The encoder of gigatoken, on the calling thread.

    It is used through `convert.encoding.fallback_encoder`, never alone. Its cache of words has no
    bound: after 64 MiB of text that made the process grow by 192 MiB the tokenizer is built again,
    which costs 50 ms and the filling of the cache.
    """

    def __init__(self, vocabulary: Vocabulary, special: SpecialInText) -> None:
        """Load the tokenizer; `plain` removes the special tokens, so that no text matches them."""
        tokenizer = json.loads(vocabulary.files[TOKENIZER_FILE])
        if special == "plain":
            tokens = tokenizer.get("added_tokens", [])
            tokenizer["added_tokens"] = [token for token in tokens if not token.get("special")]
        self._json = json.dumps(tokenizer).encode()
        self._encoded = self._resident = 0
        self.rebuilds = -1
        self._rebuild()

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Encode one batch, without a Python object for each id."""
        layout = self._tokenizer.encode_batch(list(texts), parallel=False).layout
        boundaries = np.asarray(layout.offsets.data, dtype=np.int64)
        ids = np.asarray(layout.content.data)[boundaries[0] : boundaries[-1]]
        self._encoded += sum(map(len, texts))
        if self._encoded > REBUILD_AFTER_BYTES:
            self._encoded = 0
            if resident_bytes() - self._resident > REBUILD_AT_GROWTH:
                self._rebuild()
        return ids, np.diff(boundaries)

    def _rebuild(self) -> None:
        from gigatoken.gigatoken_rs import load_hf_json

        self._tokenizer: Any = None
        malloc_trim()
        self._tokenizer = load_hf_json(self._json)
        self._encoded = 0
        self.rebuilds += 1
        self._resident = resident_bytes()


def special_pattern(vocabulary: Vocabulary) -> re.Pattern[str] | None:
    """Return a pattern that matches any special token's text; None where there are none."""
    texts = sorted((re.escape(text) for text in vocabulary.special_tokens if text), key=len)
    return re.compile("|".join(reversed(texts))) if texts else None


def resident_bytes() -> int:
    """Return the memory of this process that is in RAM; 0 where the kernel does not tell."""
    try:
        return int(STATM.read_text(encoding="ascii").split()[1]) * PAGE_BYTES
    except OSError:
        return 0


def malloc_trim() -> None:
    """Return freed memory to the kernel; the C library keeps it (60 MB after the encoder check)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # absent in musl
    if trim is not None:
        trim(0)
