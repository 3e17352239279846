"""What `convert-mds` may be told. In: flags or YAML. Out: frozen settings. Looks at no files."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from stream_pretrain.config.sections import StorageConfig
from stream_pretrain.config.types import ByteSize, Count, Location, PositiveCount, Section, Settings

HOW_NOT_WHAT = {"out", "workers", "engine", "ray_address", "overwrite", "storage", "encoder"}


class BuildConfig(Settings):
    """One conversion."""

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

    format: Literal["text", "jsonl", "csv", "parquet", "arrow", "mds"] | None = None
    """What the inputs hold; null: as their endings say."""

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

    special_in_text: Literal["plain", "act"] = "plain"
    """Whether strings such as `<|endoftext|>` inside a text become special tokens."""

    on_bad_record: Literal["stop", "skip"] = "stop"
    """What a malformed record does."""

    packing: Literal["flow", "best_fit"] = "flow"
    """`flow`: documents run on across samples; `best_fit`: kept whole where they fit, at the cost
    of padding."""

    part_size: ByteSize | None = None
    """Input bytes in a unit of work; null: a sixteenth of the input, 4 to 64 MiB."""

    shard_size: ByteSize = 1 << 25
    """Bytes of a shard before compression."""

    compression: str = Field(default="zstd", pattern=r"^(none|zstd(:([1-9]|1[0-9]|2[0-2]))?)$")
    """`zstd`, `zstd:LEVEL` or `none`."""

    encoder: Literal["auto", "gigatoken", "tokenizers"] = "auto"
    """Which library encodes; the ids are the same. `auto`: the fast one where a check shows that.
    """

    workers: PositiveCount | None = None
    """Processes; null: one a processor. The output does not depend on it."""

    engine: Literal["local", "ray"] = "local"
    """Processes on this machine, or tasks of a Ray cluster (needs the extra `ray`)."""

    ray_address: str | None = None
    """Address of the Ray cluster; null: the one that Ray finds, else a local one."""

    overwrite: bool = False
    """Replace a dataset that is there."""

    storage: StorageConfig = StorageConfig()
    """How buckets are reached."""

    def recorded(self) -> dict[str, Any]:
        """What the card keeps: everything that decides the content and the bytes."""
        return self.model_dump(mode="json", exclude=HOW_NOT_WHAT)


class BuildOptions(Section):
    """Flags of `build` that are no settings."""

    json_output: bool = Field(default=False, alias="json")
    """Print the result as JSON."""

    quiet: bool = False
    """Show no progress."""


class TokenizerConfig(Settings):
    """One tokenizer to train."""

    input: Annotated[tuple[str, ...], Field(min_length=1, strict=False)]
    """File, directory, glob or URL; may be given more than once."""

    out: Location
    """Directory or URL of the tokenizer."""

    vocab_size: PositiveCount
    """Tokens, of which 256 are the bytes and one is end-of-text."""

    format: Literal["text", "jsonl", "csv", "parquet", "arrow", "mds"] | None = None
    """What the inputs hold; null: as their endings say."""

    text_key: str = "text"
    """Key or column of the text; dots go into nested records."""

    separator: str | None = None
    """String between the documents of a text file; null: a file is one document."""

    max_bytes: ByteSize | None = None
    """Train on the first so many characters only; null: on all."""

    overwrite: bool = False
    """Replace a tokenizer that is there."""

    storage: StorageConfig = StorageConfig()
    """How buckets are reached."""


class DatasetConfig(Settings):
    """What `verify` and `inspect` need besides the dataset."""

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
