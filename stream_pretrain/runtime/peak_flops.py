"""Device name -> dense peak, for MFU. In: the name that CUDA gives. Out: FLOP/s or None.

Dense: NVIDIA's data sheets state tensor figures with 2:4 sparsity for Ampere and later, twice of
what a dense matrix can reach; those are halved here. `half` is bfloat16 and float16 with float32
accumulation, `single` is float32 without TF32, which torch leaves off. Measures nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Peak:
    """TFLOP/s of one device by kind of arithmetic. `half` None: no tensor cores for bfloat16."""

    pattern: str
    half: float | None
    single: float
    source: str


_HOPPER = "NVIDIA data sheets of H100, H200 and GH200"
_ADA = "NVIDIA Ada GPU architecture white paper, appendix A; data sheets of L4, L40 and L40S"
_AMPERE = "NVIDIA data sheets of A100, A30, A10 and A40; GA102 white paper, appendix A"
PEAKS = (
    Peak(pattern=r"GB200", half=2500, single=80, source="NVIDIA GB200 NVL72 page, per GPU"),
    Peak(pattern=r"B200", half=2250, single=75, source="NVIDIA DGX B200 data sheet, per GPU"),
    Peak(pattern=r"H200 NVL", half=835.5, single=60, source=_HOPPER),
    Peak(pattern=r"(GH200|H200)", half=989.4, single=67, source=_HOPPER),
    Peak(pattern=r"H100 NVL", half=835.5, single=60, source=_HOPPER),
    Peak(pattern=r"H100 PCIe", half=756, single=51, source=_HOPPER),
    Peak(pattern=r"(H100|H800)", half=989.4, single=67, source=_HOPPER),
    Peak(pattern=r"(A100|A800)", half=312, single=19.5, source=_AMPERE),
    Peak(pattern=r"A30", half=165, single=10.3, source=_AMPERE),
    Peak(pattern=r"A10", half=125, single=31.2, source=_AMPERE),
    Peak(pattern=r"A40", half=149.7, single=37.4, source=_AMPERE),
    Peak(pattern=r"RTX A6000", half=154.8, single=38.7, source=_AMPERE),
    Peak(pattern=r"RTX 3090", half=71, single=35.6, source=_AMPERE),
    Peak(pattern=r"L40S", half=362, single=91.6, source=_ADA),
    Peak(pattern=r"L40", half=181, single=90.5, source=_ADA),
    Peak(pattern=r"L4", half=121, single=30.3, source=_ADA),
    Peak(pattern=r"RTX 4090", half=165.2, single=82.6, source=_ADA),
    Peak(pattern=r"V100", half=None, single=15.7, source="NVIDIA V100 data sheet (SXM2)"),
    Peak(pattern=r"T4", half=None, single=8.1, source="NVIDIA T4 data sheet"),
)
"""The first pattern that matches whole words of the name counts."""


def device_name(device: torch.device) -> str:
    """The name of a device as its maker gives it; its kind for anything but a GPU."""
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def peak_flops(name: str, precision: str) -> float | None:
    """Dense peak of one device in FLOP/s at a precision of Fabric's; None where it is not known."""
    for entry in PEAKS:
        if re.search(rf"(?<![A-Za-z0-9]){entry.pattern}(?![A-Za-z0-9])", name):
            tera = entry.single if precision.startswith("32") else entry.half
            return None if tera is None else tera * 1e12
    return None
