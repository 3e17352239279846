"""A prompt -> text. In: `TrainedModel`, ids, sampling settings. Out: ids, one by one. For a quick
look, not for serving.

Each token is computed once: keys and values are kept where LitGPT can (no sliding window),
otherwise the whole text is computed anew for each token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from litgpt.config import Config  # type: ignore[import-untyped]
from litgpt.model import GPT  # type: ignore[import-untyped]
from torch import Tensor

from stream_pretrain.export.trained_model import TrainedModel


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """`temperature` 0: always the likeliest token. `top_k` 0: all tokens. The seed decides
    everything else."""

    max_tokens: int
    temperature: float = 0.8
    top_k: int = 50
    seed: int = 1234


def generate_ids(trained: TrainedModel, prompt: Sequence[int], sampling: Sampling) -> Iterator[int]:
    """New ids after `prompt`, until end-of-text (not yielded), `max_tokens`, or the context is
    full.

    An empty prompt starts from end-of-text, which is what a document follows in training.
    """
    tokenizer = trained.tokenizer
    eos_id = None if tokenizer is None else tokenizer.eos_id
    start = list(prompt) or [0 if eos_id is None else eos_id]
    fields = trained.architecture.fields
    start = start[-(fields["block_size"] - 1) :]
    usable = fields["vocab_size"] if tokenizer is None else tokenizer.vocab_size
    generator = torch.Generator().manual_seed(sampling.seed)
    room = min(sampling.max_tokens, fields["block_size"] - len(start))
    logits_of = _Stepper(trained, length=len(start) + room)
    ids = start
    for _ in range(room):
        logits_V = logits_of(ids)[:usable]
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


class _Stepper:
    """Logits of the next token for a growing list of ids."""

    def __init__(self, trained: TrainedModel, *, length: int) -> None:
        fields = trained.architecture.fields
        self._caches = fields["sliding_window_size"] is None
        self._done = 0
        with torch.no_grad():
            if not self._caches:
                self._network = trained.network()
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
            places = torch.arange(self._done, len(ids))
            self._done = len(ids)
            logits = self._network(new, places)
        else:
            logits = self._network(torch.tensor([list(ids)]))
        last: Tensor = logits[0, -1].float()
        return last
