"""Everything a worker must know. In: settings and what was found. Out: `Job`, frozen and picklable. Does no work."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import xxhash

from convert.inputs import InputFile
from convert.place import Place
from convert.readers import TAIL_SPLIT, Reading
from convert.shards import ShardFormat
from convert.vocabulary import Vocabulary
from stream_pretrain.errors import ConfigError

TRAIN = "train"
VALIDATION = TAIL_SPLIT
STAGING = ".convert"
ALL_HASHES = 1 << 64


@dataclass(frozen=True, kw_only=True)
class Validation:
    """Which documents are validation: the tail of each file, or those whose id hashes below a threshold."""

    tail: Fraction = Fraction(0)
    below: int = 0

    def split(self, document_id: str) -> str:
        """The split of a document that does not know it from its place."""
        if self.below and xxhash.xxh64_intdigest(document_id) < self.below:
            return VALIDATION
        return TRAIN


def parse_validation(value: str) -> Validation:
    """`none`, a share such as `0.01`, or `tail:0.1`."""
    kind, _, number = value.rpartition(":")
    try:
        if value == "none":
            return Validation()
        share = Fraction(number)
        if kind not in ("", "tail") or not 0 < share < 1:
            raise ValueError
    except (ValueError, ZeroDivisionError):
        raise ConfigError(
            f"--validation {value}: must be `none`, a share between 0 and 1 such as `0.01`, or `tail:0.1`."
        ) from None
    return Validation(tail=share) if kind else Validation(below=int(share * ALL_HASHES))


@dataclass(frozen=True, kw_only=True)
class TextRules:
    """Which documents are left out, and whether strings that look like special tokens are."""

    min_chars: int = 1
    max_chars: int | None = None
    special_in_text: str = "plain"


@dataclass(frozen=True, kw_only=True)
class Job:
    """The whole of a conversion, apart from how it is run."""

    files: tuple[InputFile, ...]
    reading: Reading
    skip_bad_records: bool
    text: TextRules
    vocabulary: Vocabulary
    validation: Validation
    shards: ShardFormat
    place: Place
    encoder: str
