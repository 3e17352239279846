"""Write a `TrainedModel` as a directory for `litgpt generate`, `chat` and `evaluate`.

It is flat: `lit_model.pth`, `model_config.yaml`, the tokenizer's files. The directory appears only
after LitGPT's own network, loaded from it, gave the same logits.
"""

from __future__ import annotations

from pathlib import Path

import torch
from litgpt.config import Config  # type: ignore[import-untyped]
from litgpt.model import GPT  # type: ignore[import-untyped]

from stream_pretrain.export.new_directory import new_directory
from stream_pretrain.export.parity import Parity, compare
from stream_pretrain.export.trained_model import MODEL_CONFIG, TrainedModel
from stream_pretrain.model.pretrained_weights import LITGPT_WEIGHTS


def export_litgpt(trained: TrainedModel, out: Path) -> Parity:
    """Write `out` and return how far LitGPT's logits were from ours.

    Raises:
        ConfigError: the model is not a LitGPT architecture, or `out` holds something.
        CheckpointError: LitGPT's logits differ.
    """
    architecture = trained.architecture
    with new_directory(out) as staging:
        torch.save(dict(trained.weights), staging / LITGPT_WEIGHTS)
        (staging / MODEL_CONFIG).write_text(architecture.to_yaml(), encoding="utf-8")
        for name, content in (trained.tokenizer.files if trained.tokenizer else {}).items():
            (staging / name).write_bytes(content)
        return compare(trained, _load(staging), location=str(out))


def _load(directory: Path) -> GPT:
    """Load the network as LitGPT's own commands do, in float32."""
    network = GPT(Config.from_file(directory / MODEL_CONFIG))
    weights = torch.load(directory / LITGPT_WEIGHTS, mmap=True, weights_only=True)
    network.load_state_dict(weights, strict=True)
    return network.float().eval()
