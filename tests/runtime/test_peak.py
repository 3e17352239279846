"""Dense peaks by the names that CUDA gives."""

from __future__ import annotations

import pytest
import torch

from stream_pretrain.runtime.peak_flops import PEAKS, device_name, peak_flops


@pytest.mark.parametrize(
    ("name", "half", "single"),
    [
        ("NVIDIA H200", 989.4e12, 67e12),
        ("NVIDIA H200 NVL", 835.5e12, 60e12),
        ("NVIDIA H100 80GB HBM3", 989.4e12, 67e12),
        ("NVIDIA H100 PCIe", 756e12, 51e12),
        ("NVIDIA GH200 480GB", 989.4e12, 67e12),
        ("NVIDIA A100-SXM4-80GB", 312e12, 19.5e12),
        ("NVIDIA A10", 125e12, 31.2e12),
        ("NVIDIA L4", 121e12, 30.3e12),
        ("NVIDIA L40S", 362e12, 91.6e12),
        ("NVIDIA GeForce RTX 4090", 165.2e12, 82.6e12),
        ("NVIDIA B200", 2250e12, 75e12),
        ("Tesla V100-SXM2-16GB", None, 15.7e12),
        ("NVIDIA A10G", None, None),
        ("cpu", None, None),
    ],
)
def test_the_peak_of_a_device(name: str, half: float | None, single: float | None) -> None:
    assert peak_flops(name, "bf16-mixed") == half
    assert peak_flops(name, "bf16-true") == half
    assert peak_flops(name, "32-true") == single


def test_every_entry_says_where_it_is_from_and_can_be_reached() -> None:
    for entry in PEAKS:
        assert "NVIDIA" in entry.source
        name = entry.pattern.strip("()").split("|")[0]
        assert peak_flops(f"NVIDIA {name}", "32-true") == entry.single * 1e12


def test_a_cpu_has_a_kind_and_no_peak() -> None:
    assert device_name(torch.device("cpu")) == "cpu"
