"""Do data and model fit together? In: the configuration, facts of streams and model. Out: faults,
each with its path, what was found and the remedy. Pure; derives nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stream_pretrain.config.sections import Config
from stream_pretrain.errors import Fault
from stream_pretrain.schema import ModelFacts, StreamFacts


def check_seq_len(config: Config, streams: Sequence[StreamFacts], faults: list[Fault]) -> None:
    """Every stream must have rows of the one length, or longer ones that may be cut."""
    wanted = config.data.seq_len
    if wanted is None:
        if len({s.row_ids for s in streams}) > 1:
            rows = ", ".join(f"{s.name}: {s.row_ids - 1}" for s in streams)
            faults.append(
                Fault(
                    path="data.train",
                    found=rows,
                    remedy="all streams must have one seq_len; convert with the same --seq_len",
                )
            )
        return
    for stream in streams:
        have = stream.row_ids - 1
        if have == wanted or (config.data.truncate and have > wanted):
            continue
        remedy = (
            f"stream {stream.name} has rows of {stream.row_ids} ids, which means seq_len {have}"
        )
        if have > wanted:
            remedy += "; set that, or data.truncate: true to cut rows"
        faults.append(Fault(path="data.seq_len", found=str(wanted), remedy=remedy))


def check_chunk(config: Config, micro_tokens: int, faults: list[Fault]) -> None:
    """A chunk that holds a whole micro-batch cuts nothing."""
    chunk = config.loss.chunk
    if chunk >= micro_tokens and not any(f.path.startswith("batch.") for f in faults):
        remedy = f"has no effect, a micro-batch has {micro_tokens} tokens; less than that, or 0"
        faults.append(Fault(path="loss.chunk", found=str(chunk), remedy=remedy))


def check_tokenizers(
    streams: Sequence[StreamFacts],
    validation_sets: Mapping[str, Sequence[StreamFacts]],
    faults: list[Fault],
) -> None:
    """All cards must speak of one tokenizer."""
    everything = [*streams, *(s for held in validation_sets.values() for s in held)]
    carded = [(s.name, s.card.tokenizer_fingerprint) for s in everything if s.card is not None]
    if len({fingerprint for _, fingerprint in carded}) > 1:
        found = ", ".join(f"{name}: {fingerprint[:12]}" for name, fingerprint in carded)
        faults.append(
            Fault(
                path="data",
                found=found,
                remedy="the streams were made with different tokenizers; convert them with one",
            )
        )


def check_model(
    model: ModelFacts, seq_len: int, streams: Sequence[StreamFacts], faults: list[Fault]
) -> None:
    """Ids must fit the embedding, rows must fit the context."""
    if seq_len > model.block_size:
        faults.append(
            Fault(
                path="model",
                found=f"{model.name}, a context of {model.block_size} tokens",
                remedy=f"the data has seq_len {seq_len}; choose a longer context or set "
                f"model.config.block_size",
            )
        )
    for stream in streams:
        if stream.card is not None and stream.card.vocab_size > model.padded_vocab_size:
            faults.append(
                Fault(
                    path="model",
                    found=f"{model.name}, {model.padded_vocab_size} embeddings",
                    remedy=f"stream {stream.name} has a vocabulary of "
                    f"{stream.card.vocab_size}; set "
                    f"model.config.padded_vocab_size to at least that",
                )
            )
