"""One optimizer update. In: the micro-batches of a step and a learning rate. Out: `StepResult`.
Does not count.

Loss is the sum over tokens divided by the tokens of the global batch, over micro-batches and ranks.
Results stay on the device; the host does not wait for them here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from stream_pretrain.data.batch import Batch
from stream_pretrain.data.sample_order.digest import as_signed, step_sum
from stream_pretrain.model.loss import loss_by_stream, token_loss
from stream_pretrain.optim.build_optimizer import decides_on_device
from stream_pretrain.runtime.loss_scale import LossScale
from stream_pretrain.runtime.step_sync import StepSync, StepTotals

if TYPE_CHECKING:
    from lightning.fabric import Fabric


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """One step over all ranks.

    `loss` (nats per token) and `grad_norm` (before clipping) are device scalars, `applied` a device
    bool: False where a non-finite norm left the weights as they were. `stream_losses` [streams] are
    means by stream, NaN without tokens.
    """

    loss: Tensor
    grad_norm: Tensor
    applied: Tensor
    lr: float
    tokens: int
    totals: StepTotals
    stream_losses: Tensor | None = None


class Updater:
    """`updater(batches, lr=...)` makes one update of a model by its optimizer."""

    def __init__(
        self,
        *,
        fabric: Fabric,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        control: StepSync,
        tokens_per_step: int,
        clip_norm: float | None,
        stream_starts: Sequence[int],
    ) -> None:
        self._fabric = fabric
        self._model: Any = model
        self._optimizer = optimizer
        self._control = control
        self.loss_scale = LossScale(fabric)
        self._tokens = tokens_per_step
        self._clip_norm = clip_norm
        self._stream_starts = torch.tensor(stream_starts, dtype=torch.int64)
        self._streams = len(stream_starts)

    def __call__(
        self,
        batches: Sequence[Batch],
        *,
        lr: float,
        signal: bool = False,
        time_up: bool = False,
        loss_limit: float = math.inf,
    ) -> StepResult:
        """Update once. `signal` and `time_up` are this rank's votes to stop after this step.

        A step whose loss is above `loss_limit`, or whose gradient norm is not finite, leaves the
        weights as they are.
        """
        streams = [self._streams_of(batch) for batch in batches]
        self._control.start(
            signal=signal,
            time_up=time_up,
            digest_sum=_wrapped_sum(batch.digest_sum for batch in batches),
            stream_samples=_counts(streams, self._streams),
        )
        sums = self._accumulate(batches, streams)
        losses, tokens = self._reduce(sums).unbind()
        loss = losses.sum() / self._tokens
        grad_norm = self._clip()
        applied = torch.isfinite(grad_norm) & (loss <= loss_limit)
        self._apply(applied, lr)
        return StepResult(
            loss=loss,
            grad_norm=grad_norm,
            applied=applied,
            lr=lr,
            tokens=self._tokens,
            totals=self._control.finish(),
            stream_losses=losses / tokens if self._streams > 1 else None,
        )

    def _accumulate(self, batches: Sequence[Batch], streams: Sequence[Tensor]) -> Tensor:
        """Forward and backward of every micro-batch; gradients are synchronised once. float64 [2,
        streams].
        """
        scale = self._fabric.world_size / self._tokens
        total = torch.zeros(2, self._streams, dtype=torch.float64, device=self._fabric.device)
        for place, (batch, stream) in enumerate(zip(batches, streams, strict=True)):
            more = place < len(batches) - 1
            moved = batch.to(self._fabric.device)
            with self._fabric.no_backward_sync(self._model, enabled=more):
                sums = token_loss(self._model, moved.inputs, moved.targets)
                self._fabric.backward(sums.objective * scale)
            losses, tokens = loss_by_stream(sums, stream, self._streams)
            total += torch.stack([losses, tokens.double()])
        return total

    def _clip(self) -> Tensor:
        """Norm of all gradients over all ranks; scaled down where it is above the limit."""
        self.loss_scale.unscale(self._optimizer)
        limit = float("inf") if self._clip_norm is None else self._clip_norm
        norm = torch.nn.utils.clip_grad_norm_(
            self._model.parameters(), limit, error_if_nonfinite=False
        )
        full = getattr(norm, "full_tensor", None)
        return (norm if full is None else full()).detach()

    def _apply(self, applied: Tensor, lr: float) -> None:
        """Step where `applied` says so; decided on the device where the optimizer can."""
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        if decides_on_device(self._optimizer):
            self._optimizer.found_inf = (~applied).float().reshape(())  # type: ignore[attr-defined]
            self._optimizer.step()
        elif bool(applied):
            self._optimizer.step()
        self.loss_scale.update()
        self._optimizer.zero_grad(set_to_none=True)

    def _reduce(self, sums: Tensor) -> Tensor:
        if self._fabric.world_size == 1:
            return sums
        reduced: Tensor = self._fabric.all_reduce(sums, reduce_op="sum")  # type: ignore[assignment]
        return reduced

    def _streams_of(self, batch: Batch) -> Tensor:
        """Index of each sample's stream, int64 [B]."""
        return torch.searchsorted(self._stream_starts, batch.sample_ids, right=True) - 1


def _wrapped_sum(values: Any) -> int:
    """Sum of signed 64-bit numbers that wraps as int64 addition does."""
    return as_signed(step_sum(values))


def _counts(streams: Sequence[Tensor], number: int) -> tuple[int, ...]:
    return tuple(torch.bincount(torch.cat(list(streams)), minlength=number).tolist())
