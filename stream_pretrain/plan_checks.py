"""Check that the data and the model of a run fit together.

Each function takes the configuration or facts of streams and model, and appends a fault for
everything that does not fit. Nothing is derived here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stream_pretrain.config.sections import Config
from stream_pretrain.errors import Fault
from stream_pretrain.schema import ModelFacts, StreamFacts


def check_seq_len(config: Config, streams: Sequence[StreamFacts], faults: list[Fault]) -> None:
    """Check that all streams have rows of the same length, or longer rows that may be cut."""
    seq_len = config.data.seq_len
    if seq_len is None:
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
        stream_seq_len = stream.row_ids - 1
        if stream_seq_len == seq_len or (config.data.truncate and stream_seq_len > seq_len):
            continue
        remedy = (
            f"stream {stream.name} has rows of {stream.row_ids} ids, which means seq_len "
            f"{stream_seq_len}"
        )
        if stream_seq_len > seq_len:
            remedy += "; set that, or data.truncate: true to cut rows"
        faults.append(Fault(path="data.seq_len", found=str(seq_len), remedy=remedy))


def check_chunk(config: Config, micro_tokens: int, faults: list[Fault]) -> None:
    """Check that `loss.chunk` is smaller than a micro-batch, because it has no effect otherwise."""
    chunk = config.loss.chunk
    if chunk >= micro_tokens and not any(f.path.startswith("batch.") for f in faults):
        remedy = f"has no effect, a micro-batch has {micro_tokens} tokens; less than that, or 0"
        faults.append(Fault(path="loss.chunk", found=str(chunk), remedy=remedy))


def check_tokenizers(
    streams: Sequence[StreamFacts],
    validation_sets: Mapping[str, Sequence[StreamFacts]],
    faults: list[Fault],
) -> None:
    """Check that all datasets were made with the same tokenizer."""
    all_streams = [*streams, *(s for group in validation_sets.values() for s in group)]
    known = [(s.name, s.card.tokenizer_fingerprint) for s in all_streams if s.card is not None]
    if len({fingerprint for _, fingerprint in known}) > 1:
        listed = ", ".join(f"{name}: {fingerprint[:12]}" for name, fingerprint in known)
        faults.append(
            Fault(
                path="data",
                found=listed,
                remedy="the streams were made with different tokenizers; convert them with one",
            )
        )


def check_model(
    model: ModelFacts, seq_len: int, streams: Sequence[StreamFacts], faults: list[Fault]
) -> None:
    """Check that token ids fit the embedding and that rows fit the context length."""
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
                    f"{stream.card.vocab_size}; set model.config.padded_vocab_size to at "
                    "least that",
                )
            )
