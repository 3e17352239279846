"""What can go wrong, named after who must act. In: nothing. Out: the exception classes. Does not
print or exit.

Every class takes one string, so that an error raised in a DataLoader worker survives the trip to
its parent. A message says where, what was found, and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class StreamPretrainError(Exception):
    """Base of all errors that a person can act on. `exit_code` is what the command returns."""

    exit_code = 1


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One thing wrong with a configuration: `path` (dotted), `found` (the value as text), `remedy`
    (what to do).
    """

    path: str
    found: str
    remedy: str

    def __str__(self) -> str:
        found = f" is {self.found}" if self.found else ""
        return f"{self.path}{found}: {self.remedy}"


class ConfigError(StreamPretrainError):
    """The configuration or the command line must be changed; nothing was started."""

    exit_code = 2

    def __init__(self, message: str, faults: Sequence[Fault] = ()) -> None:
        super().__init__(message)
        self.faults = tuple(faults)

    @classmethod
    def of(cls, faults: Sequence[Fault]) -> ConfigError:
        """All faults in one message, one line each."""
        head = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
        lines = "\n".join(f"  - {fault}" for fault in faults)
        return cls(f"{head} in the configuration; nothing was started.\n{lines}", faults)


class DataError(StreamPretrainError):
    """The data must be mended or another dataset chosen."""


class ShardError(DataError):
    """One shard cannot be fetched or is damaged."""


class StorageError(StreamPretrainError):
    """A path or bucket does not do what was asked.

    `reason` is one of `absent`, `denied`, `conflict`, `timeout`, `damaged`, `full`, `unreachable`,
    `other`.
    """

    def __init__(self, message: str, reason: str = "other") -> None:
        super().__init__(message)
        self.reason = reason


class CheckpointError(StreamPretrainError):
    """No checkpoint fits, or one could not be written or read."""


class OwnerError(StreamPretrainError):
    """Another live process owns the run directory or the cache."""


class TrainingError(StreamPretrainError):
    """Training itself must stop: a non-finite loss, a spike, ranks that disagree."""
