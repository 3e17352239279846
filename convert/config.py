"""What `convert-mds build` may be told. In: flags or YAML. Out: `BuildConfig`. Does not look at files."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

NOT_CONTENT = {"out", "workers", "engine", "overwrite"}


class BuildConfig(BaseModel):
    """Settings of one conversion."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    input: tuple[str, ...]
    out: str
    tokenizer: str
    seq_len: int = Field(ge=1)
    text_key: str = "text"
    id_key: str | None = None
    format: Literal["text", "jsonl"] | None = None
    eos: str = "auto"
    bos: str = "none"
    validation: str = "none"
    min_chars: int = 1
    max_chars: int | None = None
    special_in_text: Literal["plain", "act"] = "plain"
    on_bad_record: Literal["stop", "skip"] = "stop"
    part_size: int | None = None
    shard_size: int = 1 << 25
    compression: str = "zstd"
    workers: int | None = None
    engine: Literal["local", "ray"] = "local"
    overwrite: bool = False

    def recorded(self) -> dict[str, Any]:
        """What the card keeps: everything that decides the bytes."""
        return self.model_dump(mode="json", exclude=NOT_CONTENT)
