"""Define the names of a checkpoint's files and its receipt. No file is touched here.

RUN/checkpoints/step-00001000/
  model/ optimizer/     tensors as torch.distributed.checkpoint writes them
  tensors.json          what DCP leaves out: tied names, optimizer scalars, group settings
  state.json            TrainState
  rng-00000.pt          random generators, one file per rank
  tokenizer/ model_config.yaml
  receipt.json          written last: every file with its size and xxh3-128, and a seal, which
                        is a hash of the receipt itself
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from stream_pretrain.errors import CheckpointError
from stream_pretrain.schema import FileStamp
from stream_pretrain.storage.hashing import xxh3_128_of

CHECKPOINTS = "checkpoints"
MODEL_DIR = "model"
OPTIMIZER_DIR = "optimizer"
STATE_NAME = "state.json"
TENSORS_NAME = "tensors.json"
SUPERSEDED_NAME = "abandoned.json"
IDENTITY_NAME = "identity.json"
SAVING_PREFIX = ".saving-"
DELETING_PREFIX = ".deleting-"
RECEIPT_SCHEMA_VERSION = 1
_STEP = re.compile(r"step-(\d{8,})")


def step_name(step: int) -> str:
    """Return a name like `step-00001000`: with eight digits or more, names sort as numbers do."""
    return f"step-{step:08d}"


def parse_step_name(name: str) -> int | None:
    """Return the step in a checkpoint's directory name, None for any other name."""
    match = _STEP.fullmatch(name)
    return int(match.group(1)) if match and step_name(int(match.group(1))) == name else None


def rng_name(rank: int) -> str:
    """Return the name of the file with one rank's random generator states."""
    return f"rng-{rank:05d}.pt"


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """The file that makes a checkpoint exist.

    `files` lists every other file of the checkpoint; `created` is in Unix seconds.
    """

    step: int
    data_step: int
    digest: str
    world_size: int
    created: float
    files: tuple[FileStamp, ...]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(stamp.size for stamp in self.files)

    def to_json(self) -> str:
        """Return indented JSON with sorted keys and a seal, so that any flipped bit is noticed."""
        body = {"schema_version": RECEIPT_SCHEMA_VERSION, "kind": "checkpoint", **asdict(self)}
        return _dump({**body, "seal": _seal(body)})

    @classmethod
    def from_json(cls, text: bytes, location: str) -> Receipt:
        """Parse and check a receipt; `location` names it in errors.

        Raises:
            CheckpointError: the receipt is empty or damaged, or has an unknown schema.
        """
        if not text.strip():
            raise CheckpointError(f"{location}: empty receipt. Use another checkpoint.")
        try:
            raw = json.loads(text)
            if not isinstance(raw, dict):
                raise ValueError("not an object")
            seal = raw.pop("seal", None)
            if raw.get("schema_version") != RECEIPT_SCHEMA_VERSION:
                raise ValueError(f"schema {raw.get('schema_version')!r} is unknown to this version")
            if seal != _seal(raw) or _dump({**raw, "seal": seal}).encode() != text:
                raise ValueError("its seal does not match its content")
            files = tuple(FileStamp(**stamp) for stamp in raw.pop("files"))
            del raw["schema_version"], raw["kind"]
            return cls(files=files, **raw)
        except (ValueError, TypeError, KeyError) as error:
            raise CheckpointError(
                f"{location}: damaged receipt ({error}). Use another checkpoint."
            ) from error


def make_receipt(
    *,
    step: int,
    data_step: int,
    digest: str,
    world_size: int,
    created: float,
    stamps: Iterable[FileStamp],
) -> Receipt:
    """Return a receipt for the files of all ranks, sorted by name."""
    files = tuple(sorted(stamps, key=lambda stamp: stamp.name))
    names = [stamp.name for stamp in files]
    assert len(set(names)) == len(names), f"two ranks wrote the same file: {names}"
    return Receipt(
        step=step,
        data_step=data_step,
        digest=digest,
        world_size=world_size,
        created=created,
        files=files,
    )


def _dump(body: dict[str, Any]) -> str:
    return json.dumps(body, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _seal(body: dict[str, Any]) -> str:
    return xxh3_128_of(json.dumps(body, sort_keys=True, ensure_ascii=False).encode())
