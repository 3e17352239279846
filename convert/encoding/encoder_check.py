"""Choose the encoder of a job.

The tokenizer and the first documents come in; the encoder, and the reason for it, come out. The
fast encoder is used only where it gives the ids of `tokenizers`, both on strings that are difficult
for such libraries and on the job's own first documents.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import islice

import numpy as np

from convert.config import SpecialInText
from convert.encoding.encoders import (
    ByteEncoder,
    Encoder,
    EncoderName,
    TokenizersEncoder,
)
from convert.encoding.fallback_encoder import FallbackEncoder
from convert.encoding.vocabulary import Vocabulary
from stream_pretrain.errors import ConfigError, DataError

MAX_CHECKED_CHARACTERS = 1 << 18
MAX_TEXT_CHARACTERS = 1 << 16
PART_CHECK_CHARACTERS = 1 << 14  # 5 ms a part
MAX_DOCUMENTS = 2000
DIFFICULT_STRINGS = (
    "",
    " ",
    "\n",
    "\n\n\n \t\r\n  x\r\r\n",
    " " * 3000 + "x" + "\t" * 999,
    "a" * 5000,
    "ab" * 4000 + " " + "0123456789" * 500,
    "don't WE'LL I'd y'all'VE isn’t 'tis 'S",
    "3.14159 1,000,000 ٠١٢٣ ½ ² Ⅷ 1234567890123",
    "naïve café e\u0301 \u00c5 \u212b ﬁ ﬀ İstanbul ß ẞ Σς",
    "中文分词没有空格。日本語のテキスト、カタカナ 한국어 문장",
    "ไทยไม่มีช่องว่าง ខ្មែរ မြန်မာ বাংলা हिन्दी தமிழ் العربية עִבְרִית",
    "👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 ☺️ 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈 𓀀",
    "zero\u200bwidth \u00a0nbsp\u3000wide \u2028line \ufeffbom \u0000nul \u001besc \u007f \u0085",
    "\ufffd\ufffe\uffff \ue000 \U0010ffff",
    "def f(x):\n\treturn {'a': [1, 2.0e-3]}  # comment\n\n\n    pass\n",
    "https://example.org/a?b=c&d=%20#e user@example.org C:\\path\\to\\file <tag attr='x'/>",
    "!!!???...---___***///\\\\\\|||~~~```$$$€€€",
)


@dataclass(frozen=True, kw_only=True)
class ChosenEncoder:
    """The encoder and the reason for it, as the card records them."""

    name: EncoderName
    reason: str


def choose_encoder(
    wanted: str, vocabulary: Vocabulary, special: SpecialInText, texts: Iterable[str]
) -> tuple[ChosenEncoder, Encoder]:
    """Return the encoder for `wanted`, which is `auto` or a name.

    Raises `ConfigError` where the named encoder cannot be used.
    """
    if vocabulary.is_bytes and special == "plain" and wanted == "auto":
        return ChosenEncoder(name="bytes", reason="ids are the bytes"), ByteEncoder()
    if wanted == "tokenizers":
        choice = ChosenEncoder(name="tokenizers", reason="asked for")
        return choice, TokenizersEncoder(vocabulary, special)
    fast = checked_gigatoken(vocabulary, special, texts)
    if not isinstance(fast, str):
        reason = f"gigatoken {version('gigatoken')}: same ids on the first documents"
        return ChosenEncoder(name="gigatoken", reason=reason), fast
    if wanted == "gigatoken":
        raise ConfigError(f"--encoder gigatoken: {fast}. Use --encoder auto.")
    return ChosenEncoder(name="tokenizers", reason=fast), TokenizersEncoder(vocabulary, special)


def checked_gigatoken(
    vocabulary: Vocabulary, special: SpecialInText, texts: Iterable[str]
) -> FallbackEncoder | str:
    """Return the fast encoder, or the reason why it may not be used."""
    try:
        version("gigatoken")
        fast = FallbackEncoder(vocabulary, special)
    except (ImportError, PackageNotFoundError):
        return "gigatoken is not installed"
    except Exception as error:  # the library raises bare exceptions for what it does not know
        return f"gigatoken cannot load this tokenizer ({error})"
    exact = fast.exact
    specials = list(vocabulary.special_tokens)[:8]
    difficult = [*DIFFICULT_STRINGS, *(f"a{token}b {token}{token}\n{token}" for token in specials)]
    checked = [*difficult, *_first_texts(texts)]
    if same_ids(fast, exact, checked):
        return fast
    first = next((text for text in checked if not same_ids(fast, exact, [text])), "")
    return f"gigatoken gives other ids for {first[:40]!r}"


def same_ids(fast: Encoder, exact: Encoder, texts: Sequence[str]) -> bool:
    """Return whether both encoders give the same ids for each text."""
    try:
        ids, lengths = fast.encode(texts)
    except Exception:  # whatever the fast library raises, the ids are not equal
        return False
    expected, expected_lengths = exact.encode(texts)
    return np.array_equal(lengths, expected_lengths) and np.array_equal(ids, expected)


def check_part(encoder: FallbackEncoder, text: str, document_id: str) -> None:
    """Check the start of one text of a part; raise `DataError` where the ids differ."""
    if not same_ids(encoder, encoder.exact, [text[:PART_CHECK_CHARACTERS]]):
        raise DataError(
            f"{document_id}: gigatoken and tokenizers give different ids for this document. "
            "Nothing was published. Use --encoder tokenizers."
        )


def _first_texts(texts: Iterable[str]) -> list[str]:
    chosen: list[str] = []
    size = 0
    for text in islice(texts, MAX_DOCUMENTS):
        chosen.append(text[:MAX_TEXT_CHARACTERS])
        size += len(chosen[-1])
        if size >= MAX_CHECKED_CHARACTERS:
            break
    return chosen
