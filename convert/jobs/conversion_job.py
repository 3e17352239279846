"""Everything a worker must know. In: settings and what was found. Out: `ConversionJob`. Does no
work.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import xxhash

from convert.encoding.encoders import SpecialRule
from convert.encoding.vocabulary import Vocabulary
from convert.inputs.document import TRAIN, VALIDATION, Reading
from convert.inputs.input_files import InputFile
from convert.output.mds_shards import ShardFormat
from stream_pretrain.errors import ConfigError
from stream_pretrain.storage.store import Store

STAGING = ".convert"
ALL_HASHES = 1 << 64


@dataclass(frozen=True, kw_only=True)
class Validation:
    """Which documents are validation.

    `tail`: that share of each file's end. `below`: those whose id's hash is below. `number`: so
    many with the smallest hashes; a pass over the ids turns it into `below`.
    """

    tail: Fraction = Fraction(0)
    below: int = 0
    number: int = 0

    def split(self, document_id: str) -> str:
        """The split of a document that does not know it from its place."""
        return VALIDATION if self.below and id_hash(document_id) < self.below else TRAIN


def id_hash(document_id: str) -> int:
    """What decides on a document's split."""
    return xxhash.xxh64_intdigest(document_id.encode())


def parse_validation(value: str) -> Validation:
    """`none`, a share such as `0.01`, a number such as `1000`, or `tail:0.1`."""
    kind, _, number = value.rpartition(":")
    try:
        if value == "none":
            return Validation()
        share = Fraction(number)
        if kind == "" and share >= 1 and share.denominator == 1 and "." not in number:
            return Validation(number=int(share))
        if kind not in ("", "tail") or not 0 < share < 1:
            raise ValueError
    except (ValueError, ZeroDivisionError):
        raise ConfigError(
            f"--validation {value}: must be `none`, a share between 0 and 1 such as `0.01`, a "
            "number of documents such as `1000`, or `tail:0.1`."
        ) from None
    return Validation(tail=share) if kind else Validation(below=int(share * ALL_HASHES))


@dataclass(frozen=True, kw_only=True)
class TextRules:
    """Which documents are left out, and whether strings that look like special tokens are."""

    min_chars: int = 1
    max_chars: int | None = None
    special_in_text: SpecialRule = "plain"


@dataclass(frozen=True, kw_only=True)
class ConversionJob:
    """The whole of a conversion, apart from how it is run. `part_bytes` cuts chains into parts."""

    files: tuple[InputFile, ...]
    reading: Reading
    skip_bad_records: bool
    text: TextRules
    vocabulary: Vocabulary
    validation: Validation
    packing: Literal["flow", "best_fit"]
    shards: ShardFormat
    part_bytes: int
    encoder: Literal["auto", "gigatoken", "tokenizers"]
    store: Store
