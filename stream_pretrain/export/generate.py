"""Sample token ids from a `TrainedModel`, one by one; for a quick look, not for serving.

Keys and values are cached where LitGPT can do so (its architectures without a sliding window).
Otherwise the whole text is computed again for each token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from litgpt.config import Config  # type: ignore[import-untyped]
from litgpt.model import GPT  # type: ignore[import-untyped]
from torch import Tensor

from stream_pretrain.export.trained_model import TrainedModel
from stream_pretrain.model.litgpt_definition import LitGPTDefinition


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How tokens are chosen.

    `temperature` 0: always the likeliest token. `top_k` 0: of all tokens. `seed`: decides the rest.
    """

    max_tokens: int
    temperature: float = 0.8
    top_k: int = 50
    seed: int = 1234


def generate_ids(trained: TrainedModel, prompt: Sequence[int], sampling: Sampling) -> Iterator[int]:
    """Yield new ids after `prompt`, until end-of-text (not yielded) or a limit.

    The limits are `max_tokens` and the context. An empty prompt starts from end-of-text, which is
    what a document follows in training.
    """
    tokenizer = trained.tokenizer
    eos_id = None if tokenizer is None else tokenizer.eos_id
    start = list(prompt) or [0 if eos_id is None else eos_id]
    facts = trained.definition.facts()
    start = start[-(facts.block_size - 1) :]
    known_ids = facts.vocab_size if tokenizer is None else tokenizer.vocab_size
    generator = torch.Generator().manual_seed(sampling.seed)
    limit = min(sampling.max_tokens, facts.block_size - len(start))
    next_logits = _NextLogits(trained, length=len(start) + limit)
    ids = start
    for _ in range(limit):
        logits_V = next_logits(ids)[:known_ids]
        chosen = _choose(logits_V, sampling, generator)
        if chosen == eos_id:
            return
        yield chosen
        ids = [*ids, chosen]


def _choose(logits_V: Tensor, sampling: Sampling, generator: torch.Generator) -> int:
    if sampling.temperature == 0:
        return int(logits_V.argmax())
    if 0 < sampling.top_k < logits_V.numel():
        least = logits_V.topk(sampling.top_k).values[-1]
        logits_V = logits_V.masked_fill(logits_V < least, -torch.inf)
    shares_V = torch.softmax(logits_V / sampling.temperature, dim=-1)
    return int(torch.multinomial(shares_V, 1, generator=generator))


class _NextLogits:
    """Logits [V] of the next token for a growing list of ids."""

    def __init__(self, trained: TrainedModel, *, length: int) -> None:
        litgpt = isinstance(trained.definition, LitGPTDefinition)
        fields = trained.architecture.fields if litgpt else {}
        self._caches = litgpt and fields["sliding_window_size"] is None
        self._done = 0
        with torch.no_grad():
            if not self._caches:
                self._network: Any = trained.network()
                return
            self._network = GPT(Config(**fields)).eval()
            weights = {name: tensor.float() for name, tensor in trained.weights.items()}
            self._network.load_state_dict(weights, strict=True)
            self._network.max_seq_length = length
            self._network.set_kv_cache(batch_size=1)

    @torch.no_grad()
    def __call__(self, ids: Sequence[int]) -> Tensor:
        if self._caches:
            new = torch.tensor([list(ids[self._done :])])
            positions = torch.arange(self._done, len(ids))
            self._done = len(ids)
            logits = self._network(new, positions)
        else:
            logits = self._network(torch.tensor([list(ids)]))
        last: Tensor = logits[0, -1].float()
        return last
