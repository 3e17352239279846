"""Define a conversion: everything that a worker has to know.

`build` fills a `ConversionJob` from the settings, the input files and the tokenizer. No work is
done here.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import xxhash

from convert.config import EncoderChoice, Packing, SpecialInText
from convert.encoding.vocabulary import Vocabulary
from convert.inputs.document import TRAIN, VALIDATION, ReadOptions
from convert.inputs.input_files import InputFile
from convert.output.mds_shards import ShardFormat
from stream_pretrain.errors import ConfigError
from stream_pretrain.storage.store import Store

STAGING = ".convert"
ALL_HASHES = 1 << 64


@dataclass(frozen=True, kw_only=True)
class Validation:
    """Which documents are validation.

    `tail` is the share at the end of each file. `below` takes the documents whose id's hash is
    below it. `number` takes so many documents with the smallest hashes; a pass over the ids turns
    it into `below`.
    """

    tail: Fraction = Fraction(0)
    below: int = 0
    number: int = 0

    def split(self, document_id: str) -> str:
        """Return the split of a document whose position in the file does not decide it."""
        return VALIDATION if self.below and id_hash(document_id) < self.below else TRAIN


def id_hash(document_id: str) -> int:
    """Return the hash of a document's id, which decides on its split."""
    return xxhash.xxh64_intdigest(document_id.encode())


def parse_validation(value: str) -> Validation:
    """Parse `none`, a share such as `0.01`, a number such as `1000`, or `tail:0.1`."""
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
    """Which documents are left out, and how strings that look like special tokens are encoded."""

    min_chars: int = 1
    max_chars: int | None = None
    special_in_text: SpecialInText = "plain"


@dataclass(frozen=True, kw_only=True)
class ConversionJob:
    """A whole conversion, apart from how it is run.

    `part_bytes` is the size at which the worker cuts a task of several parts.
    """

    files: tuple[InputFile, ...]
    read_options: ReadOptions
    skip_bad_records: bool
    text_rules: TextRules
    vocabulary: Vocabulary
    validation: Validation
    packing: Packing
    shard_format: ShardFormat
    part_bytes: int
    encoder: EncoderChoice
    store: Store
