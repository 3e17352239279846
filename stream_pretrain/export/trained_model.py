"""A run directory -> what is exported. In: a store, a step. Out: `TrainedModel`. Verifies through
the checkpoint's receipt.

Needs no process group and no GPU; everything is held in memory once, on the CPU.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from stream_pretrain.checkpoint.layout import CHECKPOINTS, step_name
from stream_pretrain.checkpoint.read_model import read_model_files, read_model_state
from stream_pretrain.errors import CheckpointError
from stream_pretrain.export.exported_tokenizer import TOKENIZER_FILE, ExportedTokenizer
from stream_pretrain.model.architecture import Architecture
from stream_pretrain.model.litgpt_model import PretrainGPT, build_network, materialise
from stream_pretrain.schema import TOKENIZER_DIR
from stream_pretrain.storage.store import Store

MODEL_CONFIG = "model_config.yaml"


@dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """A checkpoint's weights (LitGPT names), architecture and tokenizer (None where the run had
    none)."""

    step: int
    where: str
    weights: Mapping[str, Tensor]
    architecture: Architecture
    tokenizer: ExportedTokenizer | None

    def network(self) -> PretrainGPT:
        """The network with these weights, in evaluation mode, float32."""
        made = build_network(self.architecture)
        made.to_empty(device="cpu")
        materialise(made, seed=0, fill=False)
        weights = {name: tensor.float() for name, tensor in self.weights.items()}
        made.load_state_dict(weights, strict=True)
        made.eval()
        return made

    def dtype(self) -> torch.dtype:
        """The dtype in which the weights were trained."""
        return self.weights["lm_head.weight"].dtype


def read_trained_model(run: Store, step: int | None) -> TrainedModel:
    """The checkpoint of `step`, or the newest whole one; `CheckpointError` where there is none."""
    weights, state = read_model_state(run, step)
    chosen = int(state["step"])
    place = run.child(f"{CHECKPOINTS}/{step_name(chosen)}")
    with tempfile.TemporaryDirectory(prefix="export-") as directory:
        into = Path(directory)
        read_model_files(run, chosen, (MODEL_CONFIG, TOKENIZER_DIR), into)
        if not (into / MODEL_CONFIG).is_file():
            raise CheckpointError(
                f"{place.url(MODEL_CONFIG)}: absent, so the architecture is unknown. "
                "Use another checkpoint."
            )
        architecture = Architecture.from_yaml((into / MODEL_CONFIG).read_bytes())
        found = {path.name: path.read_bytes() for path in (into / TOKENIZER_DIR).glob("*")}
    return TrainedModel(
        step=chosen,
        where=place.location,
        weights=_with_tied(weights, tied=architecture.tied),
        architecture=architecture,
        tokenizer=ExportedTokenizer.of(found) if TOKENIZER_FILE in found else None,
    )


def _with_tied(weights: Mapping[str, Tensor], *, tied: bool) -> dict[str, Tensor]:
    """Both names of a tied matrix as one tensor, whichever of them the checkpoint kept."""
    complete = dict(weights)
    head, embedding = "lm_head.weight", "transformer.wte.weight"
    if tied:
        shared = complete.get(head, complete.get(embedding))
        assert shared is not None
        complete |= {head: shared, embedding: shared}
    return complete
