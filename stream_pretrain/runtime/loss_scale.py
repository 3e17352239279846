"""The loss scale of `16-mixed`. In: Fabric, an optimizer. Out: `LossScale`. Decides no step.

float16 gradients underflow, so the loss is multiplied before the backward pass and gradients are
divided after it; the factor halves where a gradient overflowed and grows after a while without.
Fabric's own path refuses to clip with fused optimizers, and lets a step that is left out keep the
factor that made it overflow, so both are done here. With any other precision there is nothing to
scale and every method does nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

if TYPE_CHECKING:
    from lightning.fabric import Fabric
    from torch.amp import GradScaler


class LossScale:
    """Once a step, in turn: Fabric's backward passes, `unscale`, the optimizer's step, `update`."""

    def __init__(self, fabric: Fabric) -> None:
        self._scaler: GradScaler | None = getattr(fabric.strategy.precision, "scaler", None)

    def unscale(self, optimizer: Optimizer) -> None:
        """Divide the gradients in place; the device notes whether one overflowed."""
        if self._scaler is not None:
            self._scaler.unscale_(optimizer)

    def update(self) -> None:
        """Choose the next step's factor, on the device."""
        if self._scaler is not None:
            self._scaler.update()

    def state(self) -> dict[str, Any]:
        """Plain numbers for a checkpoint, empty without a scale. The host waits for the device."""
        return {} if self._scaler is None else dict(self._scaler.state_dict())

    def load(self, state: dict[str, Any]) -> None:
        """Go on with a checkpoint's numbers; one that was saved with another precision has none."""
        if self._scaler is not None and state:
            self._scaler.load_state_dict(state)
