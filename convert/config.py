"""Define the settings of `convert-mds`, which flags and YAML files give. No file is read here."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

from stream_pretrain.config.sections import StorageConfig
from stream_pretrain.config.types import (
    ByteSize,
    Check,
    Count,
    Location,
    PositiveCount,
    Section,
    Settings,
)
from stream_pretrain.errors import Fault
from stream_pretrain.units import format_bytes

EXECUTION_SETTINGS = {"out", "workers", "engine", "ray_address", "overwrite", "storage", "encoder"}
SMALLEST_PART_SIZE = 64
LARGEST_SHARD_SIZE = (1 << 32) - (1 << 17)  # offsets in a shard are 32-bit
COMPRESSION = re.compile(r"none|zstd(:([1-9]|1[0-9]|2[0-2]))?")
RENAMED_VALUES = {"packing": {"flow": "concat"}, "special_in_text": {"act": "parse"}}
"""Old value -> new value, by setting. The old ones are accepted for one release, with a warning."""

InputFormat = Literal["text", "jsonl", "csv", "parquet", "arrow", "mds"]
EncoderChoice = Literal["auto", "gigatoken", "tokenizers"]


def with_renamed_values(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return recorded settings with today's values, so that an older job is the same job."""
    renamed = dict(settings)
    for name, new_values in RENAMED_VALUES.items():
        if name in renamed:
            renamed[name] = new_values.get(renamed[name], renamed[name])
    return renamed


def _accept_old_value(value: object, info: ValidationInfo) -> object:
    """Replace the old name of a value and warn about it."""
    name = str(info.field_name)
    new = RENAMED_VALUES[name].get(value) if isinstance(value, str) else None
    if new is None:
        return value
    warnings.warn(
        f"--{name} {value} is now called --{name} {new}; the next release accepts the new name "
        "only.",
        FutureWarning,
        stacklevel=2,
    )
    return new


SpecialInText = Annotated[Literal["plain", "parse"], BeforeValidator(_accept_old_value)]
Packing = Annotated[Literal["concat", "best_fit"], BeforeValidator(_accept_old_value)]


def _compression(value: str) -> str:
    if not COMPRESSION.fullmatch(value):
        raise ValueError(
            f"must be none, zstd or zstd:LEVEL with a level from 1 to 22, got {value!r}"
        )
    return value


def _part_size(value: int) -> int:
    if value < SMALLEST_PART_SIZE:
        raise ValueError(
            f"must be at least {SMALLEST_PART_SIZE} bytes, since each part costs files of its own: "
            f"leave it out, or give some MiB, got {value}"
        )
    return value


def _shard_size(value: int) -> int:
    if value > LARGEST_SHARD_SIZE:
        raise ValueError(
            f"must be below 4 GiB ({LARGEST_SHARD_SIZE} bytes at most), since offsets in a shard "
            f"are 32-bit; usual are 16 to 128 MiB, got {format_bytes(value)}"
        )
    return value


def _lengths_agree(config: Any) -> Iterator[Fault]:
    if config.max_chars is not None and config.max_chars < config.min_chars:
        remedy = f"must be at least min_chars ({config.min_chars}): nothing would be left"
        yield Fault(path="max_chars", found=str(config.max_chars), remedy=remedy)


class BuildConfig(Settings):
    """The settings of one conversion."""

    checks: ClassVar[tuple[Check, ...]] = (_lengths_agree,)

    input: Annotated[tuple[str, ...], Field(min_length=1, strict=False)]
    """File, directory, glob, URL or `-`; `NAME=PATH` names a source. May be given more than once.
    """

    out: Location
    """Directory or URL of the dataset."""

    tokenizer: str
    """`byte`, a tokenizer.json or tokenizer.model, a directory that holds one, or a Hugging Face
    name."""

    seq_len: PositiveCount
    """Tokens that a model sees at once; a sample holds one more."""

    format: InputFormat | None = None
    """Format of the inputs; null: as their endings say."""

    text_key: str = "text"
    """Key or column of the text; dots go into nested records."""

    id_key: str | None = None
    """Key or column of the document's id; null: source and position."""

    separator: str | None = None
    """String between the documents of a text file; null: a file is one document."""

    eos: str = "auto"
    """Token after each document; `auto`: the tokenizer's own, `none`: nothing."""

    bos: str = "none"
    """Token before each document; `auto`: the tokenizer's own, `none`: nothing."""

    validation: str = "none"
    """Share (`0.01`) or number (`1000`) of documents, chosen by hash of the id, or `tail:0.1`, the
    end of each file."""

    min_chars: Count = 1
    """Shorter documents are left out and counted."""

    max_chars: PositiveCount | None = None
    """Longer documents are left out and counted; null: no limit."""

    special_in_text: SpecialInText = "plain"
    """What strings such as `<|endoftext|>` inside a text become: `plain`: text; `parse`: special
    tokens."""

    on_bad_record: Literal["stop", "skip"] = "stop"
    """What happens at a malformed record."""

    packing: Packing = "concat"
    """`concat`: documents follow one another across samples; `best_fit`: documents are kept whole
    where they fit, at the cost of padding."""

    part_size: Annotated[ByteSize, AfterValidator(_part_size)] | None = None
    """Input bytes in a unit of work; null: a sixteenth of the input, 4 to 64 MiB."""

    shard_size: Annotated[ByteSize, AfterValidator(_shard_size)] = 1 << 25
    """Bytes of a shard before compression."""

    compression: Annotated[str, AfterValidator(_compression)] = "zstd"
    """`zstd`, `zstd:LEVEL` (1 to 22) or `none`."""

    encoder: EncoderChoice = "auto"
    """Which library encodes; the ids are the same. `auto`: the fast one where a check shows that.
    """

    workers: PositiveCount | None = None
    """Processes; null: one a processor. The output does not depend on it."""

    engine: Literal["local", "ray"] = "local"
    """Processes on this machine, or tasks of a Ray cluster (needs the extra `ray`)."""

    ray_address: str | None = None
    """Address of the Ray cluster; null: the one that Ray finds, else a local one."""

    overwrite: bool = False
    """Replace an existing dataset."""

    storage: StorageConfig = StorageConfig()
    """How buckets are reached."""

    def content_settings(self) -> dict[str, Any]:
        """Return what the card keeps: every setting that decides the content and the bytes."""
        return self.model_dump(mode="json", exclude=EXECUTION_SETTINGS)


class BuildOptions(Section):
    """Flags of `build` that are not settings."""

    json_output: bool = Field(default=False, alias="json")
    """Print the result as JSON."""

    quiet: bool = False
    """Show no progress."""


class TokenizerConfig(Settings):
    """The settings of one tokenizer to train."""

    input: Annotated[tuple[str, ...], Field(min_length=1, strict=False)]
    """File, directory, glob or URL; may be given more than once."""

    out: Location
    """Directory or URL of the tokenizer."""

    vocab_size: PositiveCount
    """Tokens, of which 256 are the bytes and one is end-of-text."""

    format: InputFormat | None = None
    """Format of the inputs; null: as their endings say."""

    text_key: str = "text"
    """Key or column of the text; dots go into nested records."""

    separator: str | None = None
    """String between the documents of a text file; null: a file is one document."""

    max_bytes: ByteSize | None = None
    """Train on the first so many characters only; null: on all."""

    overwrite: bool = False
    """Replace an existing tokenizer."""

    storage: StorageConfig = StorageConfig()
    """How buckets are reached."""


class DatasetConfig(Settings):
    """The settings of `verify` and `inspect`."""

    storage: StorageConfig = StorageConfig()
    """How buckets are reached."""


class VerifyOptions(Section):
    """Flags of `verify`."""

    fast: bool = False
    """Compare sizes only."""

    json_output: bool = Field(default=False, alias="json")
    """Print the result as JSON."""


class InspectOptions(Section):
    """Flags of `inspect`."""

    samples: Count = 2
    """Samples to show as text."""

    split: str = "train"
    """Which split's documents and samples to show."""

    json_output: bool = Field(default=False, alias="json")
    """Print the result as JSON."""
