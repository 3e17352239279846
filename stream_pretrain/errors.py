"""Define the exceptions that a person can act on, named after what must be changed.

Every class can be constructed from one string, so that an error that is raised in a DataLoader
worker can be raised again in its parent process. A message says where the error is, what was found
there, and what to do. The classes neither print nor exit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class StreamPretrainError(Exception):
    """Base of all errors that a person can act on. The command exits with `exit_code`."""

    exit_code = 1


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One error in a configuration.

    `path` is the dotted key, `found` its value as text, `remedy` says what to do.
    """

    path: str
    found: str
    remedy: str

    def __str__(self) -> str:
        value = f" is {self.found}" if self.found else ""
        return f"{self.path}{value}: {self.remedy}"


class ConfigError(StreamPretrainError):
    """The configuration or the command line must be changed; nothing was started."""

    exit_code = 2

    def __init__(self, message: str, faults: Sequence[Fault] = ()) -> None:
        super().__init__(message)
        self.faults = tuple(faults)

    @classmethod
    def of(cls, faults: Sequence[Fault]) -> ConfigError:
        """Return an error whose message lists all faults, one line each."""
        head = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
        lines = "\n".join(f"  - {fault}" for fault in faults)
        return cls(f"{head} in the configuration; nothing was started.\n{lines}", faults)


class DataError(StreamPretrainError):
    """The data must be repaired, or another dataset chosen."""


class ShardError(DataError):
    """A shard cannot be fetched, or is damaged."""


class StorageError(StreamPretrainError):
    """An operation on a path or bucket failed.

    `reason` is one of `absent`, `denied`, `conflict`, `timeout`, `damaged`, `full`, `unreachable`,
    `other`.
    """

    def __init__(self, message: str, reason: str = "other") -> None:
        super().__init__(message)
        self.reason = reason


class CheckpointError(StreamPretrainError):
    """No checkpoint fits this run, or a checkpoint could not be written or read."""


class OwnerError(StreamPretrainError):
    """Another live process owns the run directory or the cache."""


class TrainingError(StreamPretrainError):
    """Training must stop: the loss is not finite or spikes, or the ranks disagree."""
