"""Find the documents of a step, and the steps of a document.

The order functions compute which samples a step had. The provenance tables of a dataset name the
documents of a sample, their input files, and the line or row there. For a stream without provenance
only the samples are known.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stream_pretrain.audit.run_history import Phase, RunHistory
from stream_pretrain.data.sample_order.epoch_order import epoch_steps
from stream_pretrain.errors import DataError
from stream_pretrain.schema import DOCUMENTS_DIR
from stream_pretrain.train.data_sources import DataSource


@dataclass(frozen=True, kw_only=True)
class DocumentSpan:
    """The tokens of one document within one sample: ids `begin` to `end` (excluded) of its row."""

    document: str
    source: str
    position: int
    begin: int
    end: int


@dataclass(frozen=True, kw_only=True)
class TracedSample:
    """One sample of a step: its stream, its number in the stream, its shard and its documents."""

    stream: str
    sample: int
    shard: str
    row: int
    pieces: tuple[DocumentSpan, ...]


@dataclass(frozen=True, kw_only=True)
class Occurrence:
    """A data step that had a part of a document."""

    data_step: int
    epoch: int
    phase: int
    stream: str
    sample: int


def trace_step(history: RunHistory, data_step: int) -> list[TracedSample]:
    """Return the samples of a data step, ordered by stream and number.

    Raises:
        DataError: the run has not reached the step, or has skipped it.
    """
    phase = history.phase_of(data_step)
    if history.state.is_skipped(data_step):
        raise DataError(f"data step {data_step} was skipped: the run did not train on it")
    epoch, step = divmod(data_step - phase.first, phase.plan.steps_per_epoch)
    ids = epoch_steps(phase.plan.order, _shards(phase), epoch, first_step=step)[0]
    return [_traced(phase, int(sample_id)) for sample_id in np.sort(ids)]


def trace_document(
    history: RunHistory, document: str, stream: str | None = None
) -> list[Occurrence]:
    """Return every data step, except skipped ones, that had a part of a document.

    Raises:
        DataError: no stream of the run has a document with that id.
    """
    occurrences: list[Occurrence] = []
    is_known = False
    for phase in history.phases:
        samples = dict(_samples_of(phase, document, stream))
        is_known = is_known or bool(samples)
        occurrences += _occurrences(history, phase, samples)
    if not is_known:
        raise DataError(f"no document {document!r} in the provenance of this run's streams")
    return occurrences


def _occurrences(
    history: RunHistory, phase: Phase, samples: dict[int, tuple[str, int]]
) -> Iterator[Occurrence]:
    """Yield the occurrences of samples (global id -> stream, number) in the steps of a phase."""
    per_epoch = phase.plan.steps_per_epoch
    steps = phase.last - phase.first + 1
    if not samples or steps < 1:
        return
    for epoch in range(-(-steps // per_epoch)):
        order = epoch_steps(phase.plan.order, _shards(phase), epoch)
        step_indices, columns = np.nonzero(np.isin(order, list(samples)))
        for step, column in zip(step_indices.tolist(), columns.tolist(), strict=True):
            data_step = phase.first + epoch * per_epoch + step
            if data_step > phase.last or history.state.is_skipped(data_step):
                continue
            name, sample = samples[int(order[step, column])]
            yield Occurrence(
                data_step=data_step, epoch=epoch, phase=phase.number, stream=name, sample=sample
            )


def _samples_of(
    phase: Phase, document: str, stream: str | None
) -> Iterator[tuple[int, tuple[str, int]]]:
    """Yield the global id, stream and number of all samples that have a part of a document."""
    start = 0
    for source in phase.sources.train:
        if stream in (None, source.facts.name):
            row_ids = phase.plan.seq_len + 1
            for first, tokens in _token_ranges(source, document):
                last = min((first + tokens - 1) // row_ids, source.facts.samples - 1)
                for sample in range(first // row_ids, last + 1):
                    yield start + sample, (source.facts.name, sample)
        start += source.facts.samples


def _token_ranges(source: DataSource, document: str) -> Iterator[tuple[int, int]]:
    """Yield the first token and the number of tokens of each part of a document in a stream."""
    for key in _provenance(source):
        table = pq.read_table(
            io.BytesIO(source.store.read(key)), filters=pc.field("id") == document
        )
        yield from zip(table["first_token"].to_pylist(), table["tokens"].to_pylist(), strict=True)


def _traced(phase: Phase, sample_id: int) -> TracedSample:
    for source in phase.sources.train:
        if sample_id < source.facts.samples:
            break
        sample_id -= source.facts.samples
    ends = np.cumsum(source.shard_samples)
    shard = int(np.searchsorted(ends, sample_id, side="right"))
    row = sample_id - (int(ends[shard - 1]) if shard else 0)
    return TracedSample(
        stream=source.facts.name,
        sample=sample_id,
        shard=source.index.shards[shard].fetched.name,
        row=row,
        pieces=tuple(_document_spans(source, sample_id, phase.plan.seq_len + 1)),
    )


def _document_spans(source: DataSource, sample: int, row_ids: int) -> Iterator[DocumentSpan]:
    """Yield the documents of a sample, which has `row_ids` ids of the packed stream."""
    begin, end = sample * row_ids, (sample + 1) * row_ids
    first, tokens = pc.field("first_token"), pc.field("tokens")
    for key in _provenance(source):
        overlapping = (first < end) & (first + tokens.cast("int64") > begin)
        table = pq.read_table(io.BytesIO(source.store.read(key)), filters=overlapping)
        for entry in table.to_pylist():
            yield DocumentSpan(
                document=entry["id"],
                source=entry["source"],
                position=entry["position"],
                begin=max(entry["first_token"], begin) - begin,
                end=min(entry["first_token"] + entry["tokens"], end) - begin,
            )


def _provenance(source: DataSource) -> Sequence[str]:
    """Return the keys of a stream's provenance tables; a stream of another tool has none."""
    files = source.store.list(DOCUMENTS_DIR)
    return [file.key for file in files if file.key.endswith(".parquet")]


def _shards(phase: Phase) -> list[list[int]]:
    return [source.shard_samples for source in phase.sources.train]
