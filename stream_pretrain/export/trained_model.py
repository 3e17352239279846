"""Read what is exported from a run directory: weights, model definition and tokenizer.

Files are checked against the checkpoint's receipt. Needs no process group and no GPU; everything is
held in memory once, on the CPU.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from stream_pretrain.checkpoint.layout import CHECKPOINTS, step_name
from stream_pretrain.checkpoint.read_model import read_model_files, read_model_state
from stream_pretrain.errors import CheckpointError, ConfigError, Fault
from stream_pretrain.export.exported_tokenizer import TOKENIZER_FILE, ExportedTokenizer
from stream_pretrain.model.architecture import Architecture
from stream_pretrain.model.litgpt_definition import LitGPTDefinition
from stream_pretrain.model.protocol import ModelDefinition
from stream_pretrain.model.registry import build_on_meta, read_model_config_file
from stream_pretrain.schema import TOKENIZER_DIR
from stream_pretrain.storage.store import Store

MODEL_CONFIG = "model_config.yaml"


@dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """A checkpoint of a model.

    `location`: path or URL of the checkpoint. `weights`: whole tensors by the network's own names.
    `name`: of the model. `tokenizer`: None where the run had none.
    """

    step: int
    location: str
    weights: Mapping[str, Tensor]
    name: str
    definition: ModelDefinition
    tokenizer: ExportedTokenizer | None

    @property
    def architecture(self) -> Architecture:
        """The LitGPT architecture.

        Raises:
            ConfigError: the model is not one of LitGPT's.
        """
        if isinstance(self.definition, LitGPTDefinition):
            return self.definition.architecture
        remedy = (
            f"cannot express {self.name}, which is not a LitGPT architecture; read its weights "
            "with stream_pretrain.checkpoint.read_model.read_model_state"
        )
        raise ConfigError.of([Fault(path="--format", found="", remedy=remedy)])

    def network(self) -> Any:
        """Return the network (a `LanguageModel`) with these weights, for evaluation, in float32."""
        made = build_on_meta(self.definition, name=self.name)
        made.to_empty(device="cpu")
        made.reset_buffers()
        weights = {name: tensor.float() for name, tensor in self.weights.items()}
        made.load_state_dict(weights, strict=True)
        made.eval()
        return made


def read_trained_model(run: Store, step: int | None) -> TrainedModel:
    """Read the checkpoint of `step`, or the newest whole one.

    Raises:
        CheckpointError: there is none, or it does not say which model it is of.
        ConfigError: the model is the user's code, which cannot be imported.
    """
    weights, state = read_model_state(run, step)
    chosen = int(state["step"])
    checkpoint = run.child(f"{CHECKPOINTS}/{step_name(chosen)}")
    with tempfile.TemporaryDirectory(prefix="export-") as directory:
        into = Path(directory)
        read_model_files(run, chosen, (MODEL_CONFIG, TOKENIZER_DIR), into)
        if not (into / MODEL_CONFIG).is_file():
            raise CheckpointError(
                f"{checkpoint.url(MODEL_CONFIG)}: absent, so the architecture is unknown. "
                "Use another checkpoint."
            )
        name, definition = read_model_config_file((into / MODEL_CONFIG).read_bytes())
        files = {path.name: path.read_bytes() for path in (into / TOKENIZER_DIR).glob("*")}
    if isinstance(definition, LitGPTDefinition) and definition.architecture.tied:
        weights = _with_both_names(weights)
    return TrainedModel(
        step=chosen,
        location=checkpoint.location,
        weights=weights,
        name=name,
        definition=definition,
        tokenizer=ExportedTokenizer.of(files) if TOKENIZER_FILE in files else None,
    )


def _with_both_names(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights with a tied matrix under both names, whichever the checkpoint kept."""
    head, embedding = "lm_head.weight", "transformer.wte.weight"
    shared = weights.get(head, weights.get(embedding))
    assert shared is not None
    return {**weights, head: shared, embedding: shared}
