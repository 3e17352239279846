"""Encode with gigatoken where its ids are those of `tokenizers`, and with `tokenizers` elsewhere.

The choice is made for each text. Pre-tokenizers split by Unicode classes, and gigatoken knows a
newer Unicode than `tokenizers`: in 100 MB of Python sources one document of 8,343 got other ids,
for letters of a script that only one of them knew. Characters that Unicode 3.2 had and whose class
never changed are safe (a test tries all 101,211). Any other character is tried once, when it is
first met, between letters, digits, marks and spaces, with a vocabulary whose merges show every
split. A text with a character that fails is encoded by `tokenizers`.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convert.config import SpecialInText
from convert.encoding.byte_tokenizer import byte_characters
from convert.encoding.encoders import (
    Encoded,
    Encoder,
    GigatokenEncoder,
    TokenizersEncoder,
)
from convert.encoding.tokenizer_files import TOKENIZER_FILE
from convert.encoding.vocabulary import Vocabulary

Ids = NDArray[Any]

LAST_CODE_POINT = 0x2FFFF  # after it, Unicode 3.2 had nothing but tags and private use
NEIGHBOURS = (
    'a1"\u0120\u010a\u0109'  # letter, digit, mark; space, newline, tab as bytes are written
)


class FallbackEncoder:
    """Combines two encoders; `fallback_texts` counts those that `tokenizers` had to encode."""

    def __init__(self, vocabulary: Vocabulary, special: SpecialInText) -> None:
        """Load both encoders."""
        self.fast: Encoder = GigatokenEncoder(vocabulary, special)
        self.exact: Encoder = TokenizersEncoder(vocabulary, special)
        self._characters = CharacterCheck(vocabulary)
        self.fallback_texts = 0

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Encode one batch, in order."""
        fallback = [i for i, text in enumerate(texts) if self._characters.needs_fallback(text)]
        if not fallback:
            return self.fast.encode(texts)
        self.fallback_texts += len(fallback)
        chosen = set(fallback)
        rest = [i for i in range(len(texts)) if i not in chosen]
        pieces: list[Ids] = [np.empty(0, np.uint32)] * len(texts)
        for encoder, indices in ((self.exact, fallback), (self.fast, rest)):
            if indices:
                encoded = _split_ids(encoder.encode([texts[i] for i in indices]))
                for i, piece in zip(indices, encoded, strict=True):
                    pieces[i] = piece
        return np.concatenate(pieces), np.array([len(piece) for piece in pieces], dtype=np.int64)


class CharacterCheck:
    """Finds the characters that both encoders class alike; each is tried when it is first met."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._probes: tuple[Encoder, Encoder] | None = None
        self._same: set[str] = set()
        self._different: set[str] = set()

    def needs_fallback(self, text: str) -> bool:
        """Return whether a text holds a character that the encoders may split differently."""
        if text.isascii() or unproven_characters().search(text) is None:
            return False
        unproven = set(unproven_characters().findall(text))
        unknown = unproven - self._same - self._different
        if unknown:
            self._try(sorted(unknown))
        return not unproven.isdisjoint(self._different)

    def _try(self, characters: Sequence[str]) -> None:
        try:
            fast, exact = self._probe_encoders()
            texts = [probe_text(character) for character in characters]
            fast_ids, exact_ids = (_split_ids(encoder.encode(texts)) for encoder in (fast, exact))
        except Exception:  # no such vocabulary, or whatever the fast library raises
            self._different.update(characters)
            return
        for character, first, second in zip(characters, fast_ids, exact_ids, strict=True):
            (self._same if np.array_equal(first, second) else self._different).add(character)

    def _probe_encoders(self) -> tuple[Encoder, Encoder]:
        if self._probes is None:
            probe = probe_json(self._vocabulary.files[TOKENIZER_FILE])
            vocabulary = replace(self._vocabulary, files={TOKENIZER_FILE: probe})
            fast = GigatokenEncoder(vocabulary, "plain")
            self._probes = (fast, TokenizersEncoder(vocabulary, "plain"))
        return self._probes


def probe_text(character: str) -> str:
    """Return a text with the character between all kinds of neighbours."""
    c = character
    return f'a{c}a 1{c}1 "{c}" {c}{c}\n{c}\t{c}'


@cache
def unproven_characters() -> re.Pattern[str]:
    """Return a pattern that matches any character that has to be tried."""
    old = unicodedata.ucd_3_2_0.category
    new = unicodedata.category
    return pattern_outside(
        c for c in range(LAST_CODE_POINT + 1) if new(chr(c)) == old(chr(c)) != "Cn"
    )


def probe_json(tokenizer_json: bytes) -> bytes:
    """Return the tokenizer with a vocabulary of bytes and of every byte joined to a neighbour.

    A split between a character and its neighbour then always shows in the ids. Raises ValueError
    where the model is not a byte-level BPE.
    """
    tokenizer = json.loads(tokenizer_json)
    if tokenizer["model"].get("type") != "BPE" or "ByteLevel" not in json.dumps(
        tokenizer.get("pre_tokenizer")
    ):
        raise ValueError("not a byte-level BPE")
    letters = byte_characters()
    high = letters[0x80:]
    pairs = [*product(NEIGHBOURS, high), *product(high, NEIGHBOURS)]
    vocabulary = [*letters, *("".join(pair) for pair in pairs)]
    tokenizer["model"]["vocab"] = {text: number for number, text in enumerate(vocabulary)}
    merges_are_strings = all(isinstance(merge, str) for merge in tokenizer["model"]["merges"])
    tokenizer["model"]["merges"] = [
        " ".join(pair) if merges_are_strings else list(pair) for pair in pairs
    ]
    tokenizer["model"]["unk_token"] = None
    tokenizer["added_tokens"] = []
    tokenizer["post_processor"] = None
    return json.dumps(tokenizer).encode()


def pattern_outside(code_points: Iterable[int]) -> re.Pattern[str]:
    """Return a pattern for one character that is none of these ascending code points."""
    ranges: list[tuple[int, int]] = []
    for code in code_points:
        if ranges and code == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], code)
        else:
            ranges.append((code, code))
    inside = "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in ranges)
    return re.compile(f"[^{inside}]")


def _split_ids(encoded: Encoded) -> list[Ids]:
    ids, lengths = encoded
    return np.split(ids, np.cumsum(lengths)[:-1])
