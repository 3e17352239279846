"""Make a `TrainedModel` of any tiny architecture."""

from __future__ import annotations

from dataclasses import asdict

import torch
from model.shapes import SHAPES

from convert.encoding.byte_tokenizer import byte_tokenizer_files
from stream_pretrain.config.sections import ModelConfig
from stream_pretrain.export.exported_tokenizer import ExportedTokenizer
from stream_pretrain.export.trained_model import TrainedModel
from stream_pretrain.model.architecture import Architecture
from stream_pretrain.model.litgpt_definition import LitGPTDefinition
from stream_pretrain.model.registry import build_model


def trained(
    name: str, *, tied: bool = False, tokenizer: bool = True, seed: int = 3
) -> TrainedModel:
    """A checkpoint whose every parameter is random, norms and biases too."""
    network = build_model(ModelConfig(config=SHAPES[name], tie_embeddings=tied), seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.empty_like(parameter).normal_(0, 0.1, generator=generator))
    return TrainedModel(
        step=7,
        location="RUN/checkpoints/step-00000007",
        weights={key: value.clone() for key, value in network.state_dict().items()}
        if not tied
        else network.state_dict(),
        name=name,
        definition=LitGPTDefinition(Architecture(fields=asdict(network.config), tied=tied)),
        tokenizer=ExportedTokenizer.of(byte_tokenizer_files()) if tokenizer else None,
    )
