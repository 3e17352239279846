"""List, check and remove the checkpoints below a run directory or a staging directory.

A checkpoint exists when it has a receipt, which is written last and removed first. No tensor is
read here.
"""

from __future__ import annotations

from stream_pretrain.checkpoint.layout import (
    CHECKPOINTS,
    STATE_NAME,
    SUPERSEDED_NAME,
    Receipt,
    parse_step_name,
    step_name,
)
from stream_pretrain.checkpoint.state import TrainState
from stream_pretrain.errors import CheckpointError
from stream_pretrain.schema import RECEIPT_NAME, FileStamp
from stream_pretrain.storage.hashing import blocks, hasher, stamp_of, xxh3_128_of
from stream_pretrain.storage.store import Store


class CheckpointDir:
    """The checkpoints below `<root>/checkpoints`."""

    def __init__(self, root: Store) -> None:
        self.store = root.child(CHECKPOINTS)
        self._known_receipts: set[int] = set()  # steps that a bucket is not asked about again

    def steps(self) -> list[int]:
        """Return the steps of all checkpoints that have a receipt, ascending.

        The receipts are not read.
        """
        steps = [s for s in self.directories() if s in self._known_receipts or self._has_receipt(s)]
        self._known_receipts = set() if self.store.is_local else set(steps)
        return steps

    def directories(self) -> list[int]:
        """Return the steps of all directories named like a checkpoint, ascending."""
        names = self.store.list_dirs()
        return sorted(step for name in names if (step := parse_step_name(name)) is not None)

    def is_superseded(self, step: int) -> bool:
        """Return True when `supersede` was called for this checkpoint."""
        return self.store.head(self.key(step, SUPERSEDED_NAME)) is not None

    def key(self, step: int, name: str) -> str:
        """Return the key of one file of a checkpoint."""
        return f"{step_name(step)}/{name}"

    def receipt(self, step: int) -> Receipt:
        """Read the receipt of a checkpoint.

        Raises:
            CheckpointError: the receipt is damaged or belongs to another step.
        """
        key = self.key(step, RECEIPT_NAME)
        receipt = Receipt.from_json(self.store.read(key), self.store.url(key))
        if receipt.step != step:
            raise CheckpointError(
                f"{self.store.url(key)}: is the receipt of step {receipt.step}. Use another "
                "checkpoint."
            )
        return receipt

    def check(self, step: int, *, hashes: bool) -> Receipt:
        """Compare a checkpoint's files with its receipt, and return the receipt.

        Raises:
            CheckpointError: names the first file that differs.
        """
        receipt = self.receipt(step)
        self.check_sizes(receipt)
        if hashes:
            for stamp in receipt.files:
                self._check_hash(step, stamp)
        return receipt

    def check_sizes(self, receipt: Receipt) -> None:
        """Raise `CheckpointError` unless every file of a receipt exists and has its size."""
        sizes = {info.key: info.size for info in self.store.list(step_name(receipt.step))}
        for stamp in receipt.files:
            key = self.key(receipt.step, stamp.name)
            if key not in sizes:
                raise CheckpointError(f"{self.store.url(key)}: is missing. Use another checkpoint.")
            if sizes[key] != stamp.size:
                raise CheckpointError(
                    f"{self.store.url(key)}: has {sizes[key]} bytes, the receipt says "
                    f"{stamp.size}. Use another checkpoint."
                )

    def state(self, receipt: Receipt) -> TrainState:
        """Read the training state of a checkpoint, after comparing its hash with the receipt."""
        key = self.key(receipt.step, STATE_NAME)
        text = self.store.read(key)
        expected = next((s.xxh3_128 for s in receipt.files if s.name == STATE_NAME), "absent")
        self._require_hash(key, xxh3_128_of(text), expected)
        return TrainState.from_json(text, self.store.url(key))

    def write_receipt(self, receipt: Receipt) -> None:
        """Write the receipt, which makes the checkpoint exist."""
        self.store.write(self.key(receipt.step, RECEIPT_NAME), receipt.to_json().encode())

    def remove(self, step: int) -> None:
        """Remove a checkpoint, its receipt first."""
        self._known_receipts.discard(step)
        self.store.delete(self.key(step, RECEIPT_NAME))
        self.store.delete_prefix(step_name(step))

    def supersede(self, step: int) -> None:
        """Take a checkpoint out of use without removing its files: rename its receipt.

        Training went back to before it, so it must not be resumed from.
        """
        self._known_receipts.discard(step)
        text = self.store.read(self.key(step, RECEIPT_NAME))
        self.store.write(self.key(step, SUPERSEDED_NAME), text)
        self.store.delete(self.key(step, RECEIPT_NAME))

    def remove_uncommitted(self, step: int) -> None:
        """Remove a directory without a receipt, left behind by a killed save or removal."""
        if not self._has_receipt(step):
            self.store.delete_prefix(step_name(step))

    def _has_receipt(self, step: int) -> bool:
        return self.store.head(self.key(step, RECEIPT_NAME)) is not None

    def _check_hash(self, step: int, stamp: FileStamp) -> None:
        key = self.key(step, stamp.name)
        if self.store.is_local:
            actual = stamp_of(self.store.path / key).xxh3_128
        else:
            digest = hasher("xxh3_128")
            with self.store.open_stream(key) as stream:
                for block in blocks(stream):
                    digest.update(block)
            actual = digest.hexdigest()
        self._require_hash(key, actual, stamp.xxh3_128)

    def _require_hash(self, key: str, actual: str, expected: str) -> None:
        if actual != expected:
            raise CheckpointError(
                f"{self.store.url(key)}: xxh3-128 is {actual}, the receipt says {expected}. "
                "Use another checkpoint."
            )
