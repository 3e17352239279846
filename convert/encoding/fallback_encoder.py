"""gigatoken where its ids are those of `tokenizers`, text by text. In: texts. Out: ids, lengths.

Pre-tokenizers cut by Unicode classes, and gigatoken knows a newer Unicode than `tokenizers`: in 100
MB of Python sources one document of 8,343 got other ids, for letters of a script that only one of
them knew. Characters that Unicode 3.2 had and whose class never changed are safe (a test tries all
101,211). Any other is tried once, when it is met, between letters, digits, marks and spaces, with a
vocabulary whose merges show every cut. A text with a character that fails is left to `tokenizers`.
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

from convert.encoding.byte_tokenizer import byte_characters
from convert.encoding.encoders import (
    Encoded,
    Encoder,
    GigatokenEncoder,
    SpecialRule,
    TokenizersEncoder,
)
from convert.encoding.tokenizer_files import TOKENIZER_FILE
from convert.encoding.vocabulary import Vocabulary

Ids = NDArray[Any]

LAST_OLD = 0x2FFFF  # behind it, Unicode 3.2 had nothing but tags and private use
NEIGHBOURS = (
    'a1"\u0120\u010a\u0109'  # letter, digit, mark; space, newline, tab as bytes are written
)


class FallbackEncoder:
    """Two encoders that act as one; `exactly` counts the texts that `tokenizers` had to encode."""

    def __init__(self, vocabulary: Vocabulary, special: SpecialRule) -> None:
        """Load both."""
        self.fast: Encoder = GigatokenEncoder(vocabulary, special)
        self.exact: Encoder = TokenizersEncoder(vocabulary, special)
        self._trials = Trials(vocabulary)
        self.exactly = 0

    def encode(self, texts: Sequence[str]) -> Encoded:
        """One batch, in order."""
        doubtful = [place for place, text in enumerate(texts) if self._trials.doubts(text)]
        if not doubtful:
            return self.fast.encode(texts)
        self.exactly += len(doubtful)
        chosen = set(doubtful)
        rest = [place for place in range(len(texts)) if place not in chosen]
        pieces: list[Ids] = [np.empty(0, np.uint32)] * len(texts)
        for encoder, places in ((self.exact, doubtful), (self.fast, rest)):
            if places:
                ids, lengths = encoder.encode([texts[place] for place in places])
                for place, piece in zip(
                    places, np.split(ids, np.cumsum(lengths)[:-1]), strict=True
                ):
                    pieces[place] = piece
        return np.concatenate(pieces), np.array([len(piece) for piece in pieces], dtype=np.int64)


class Trials:
    """Which characters both encoders class alike; each is tried when it is first met."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._probes: tuple[Encoder, Encoder] | None = None
        self._good: set[str] = set()
        self._bad: set[str] = set()

    def doubts(self, text: str) -> bool:
        """Whether a text holds a character that may be cut otherwise."""
        if text.isascii() or old_pattern().search(text) is None:
            return False
        young = set(old_pattern().findall(text))
        unknown = young - self._good - self._bad
        if unknown:
            self._try(sorted(unknown))
        return not young.isdisjoint(self._bad)

    def _try(self, characters: Sequence[str]) -> None:
        try:
            fast, exact = self._loaded()
            texts = [trial(character) for character in characters]
            mine, theirs = (_each(encoder.encode(texts)) for encoder in (fast, exact))
        except Exception:  # no such vocabulary, or whatever the fast library raises: all are bad
            self._bad.update(characters)
            return
        for character, first, second in zip(characters, mine, theirs, strict=True):
            (self._good if np.array_equal(first, second) else self._bad).add(character)

    def _loaded(self) -> tuple[Encoder, Encoder]:
        if self._probes is None:
            probe = probe_json(self._vocabulary.files[TOKENIZER_FILE])
            vocabulary = replace(self._vocabulary, files={TOKENIZER_FILE: probe})
            fast = GigatokenEncoder(vocabulary, "plain")
            self._probes = (fast, TokenizersEncoder(vocabulary, "plain"))
        return self._probes


def trial(character: str) -> str:
    """A character between all kinds of neighbours."""
    c = character
    return f'a{c}a 1{c}1 "{c}" {c}{c}\n{c}\t{c}'


@cache
def old_pattern() -> re.Pattern[str]:
    """Matches any character that needs a trial."""
    old = unicodedata.ucd_3_2_0.category
    new = unicodedata.category
    return pattern_outside(c for c in range(LAST_OLD + 1) if new(chr(c)) == old(chr(c)) != "Cn")


def probe_json(tokenizer_json: bytes) -> bytes:
    """The tokenizer with a vocabulary of bytes and of every byte joined to a neighbour.

    A cut between a character and its neighbour then always shows in the ids. ValueError where the
    model is not a byte-level BPE.
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
    old_form = all(isinstance(merge, str) for merge in tokenizer["model"]["merges"])
    tokenizer["model"]["merges"] = [" ".join(pair) if old_form else list(pair) for pair in pairs]
    tokenizer["model"]["unk_token"] = None
    tokenizer["added_tokens"] = []
    tokenizer["post_processor"] = None
    return json.dumps(tokenizer).encode()


def pattern_outside(code_points: Iterable[int]) -> re.Pattern[str]:
    """Matches one character that is none of these ascending code points."""
    ranges: list[tuple[int, int]] = []
    for code in code_points:
        if ranges and code == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], code)
        else:
            ranges.append((code, code))
    inside = "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in ranges)
    return re.compile(f"[^{inside}]")


def _each(encoded: Encoded) -> list[Ids]:
    ids, lengths = encoded
    return np.split(ids, np.cumsum(lengths)[:-1])
