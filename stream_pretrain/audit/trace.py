"""From a step to its documents, and back. In: a run's lineage. Out: samples, documents, files and
lines. Trains nothing.

The order functions say which samples a step held; the provenance beside the shards says which
documents, where they came from, and at which line or row. Streams without provenance give samples
alone.
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
    """A run of tokens of one document within one sample: ids `begin..end` (end excluded) of the
    row.
    """

    document: str
    source: str
    position: int
    begin: int
    end: int


@dataclass(frozen=True, kw_only=True)
class TracedSample:
    """One sample of a step: its stream, its number there, its shard, and the documents in it."""

    stream: str
    sample: int
    shard: str
    row: int
    pieces: tuple[DocumentSpan, ...]


@dataclass(frozen=True, kw_only=True)
class Occurrence:
    """A data step that held a part of a document."""

    data_step: int
    epoch: int
    phase: int
    stream: str
    sample: int


def trace_step(history: RunHistory, data_step: int) -> list[TracedSample]:
    """The samples of a data step, in order of stream and number.

    Raises:
        DataError: the run has not come so far, or left the step out.
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
    """Every data step, skipped ones left out, that held a part of a document.

    Raises:
        DataError: no stream of the run has a document of that id.
    """
    found: list[Occurrence] = []
    known = False
    for phase in history.phases:
        wanted = dict(_samples_of(phase, document, stream))
        known = known or bool(wanted)
        found += _sightings(history, phase, wanted)
    if not known:
        raise DataError(f"no document {document!r} in the provenance of this run's streams")
    return found


def _sightings(
    history: RunHistory, phase: Phase, wanted: dict[int, tuple[str, int]]
) -> Iterator[Occurrence]:
    """Where samples (joined id -> stream, number) came in the steps of a phase."""
    per_epoch = phase.plan.steps_per_epoch
    steps = phase.last - phase.first + 1
    if not wanted or steps < 1:
        return
    for epoch in range(-(-steps // per_epoch)):
        order = epoch_steps(phase.plan.order, _shards(phase), epoch)
        places, columns = np.nonzero(np.isin(order, list(wanted)))
        for place, column in zip(places.tolist(), columns.tolist(), strict=True):
            data_step = phase.first + epoch * per_epoch + place
            if data_step > phase.last or history.state.is_skipped(data_step):
                continue
            name, sample = wanted[int(order[place, column])]
            yield Occurrence(
                data_step=data_step, epoch=epoch, phase=phase.number, stream=name, sample=sample
            )


def _samples_of(
    phase: Phase, document: str, stream: str | None
) -> Iterator[tuple[int, tuple[str, int]]]:
    """Joined ids of all samples that hold a part of a document."""
    start = 0
    for source in phase.sources.train:
        if stream in (None, source.facts.name):
            row = phase.plan.seq_len + 1
            for first, tokens in _pieces_of(source, document):
                last = min((first + tokens - 1) // row, source.facts.samples - 1)
                for sample in range(first // row, last + 1):
                    yield start + sample, (source.facts.name, sample)
        start += source.facts.samples


def _pieces_of(source: DataSource, document: str) -> Iterator[tuple[int, int]]:
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
        pieces=tuple(_pieces_in(source, sample_id, phase.plan.seq_len + 1)),
    )


def _pieces_in(source: DataSource, sample: int, row: int) -> Iterator[DocumentSpan]:
    """Documents that overlap ids `sample * row` to `(sample + 1) * row` of the packed stream."""
    begin, end = sample * row, (sample + 1) * row
    first, tokens = pc.field("first_token"), pc.field("tokens")
    for key in _provenance(source):
        wanted = (first < end) & (first + tokens.cast("int64") > begin)
        table = pq.read_table(io.BytesIO(source.store.read(key)), filters=wanted)
        for entry in table.to_pylist():
            yield DocumentSpan(
                document=entry["id"],
                source=entry["source"],
                position=entry["position"],
                begin=max(entry["first_token"], begin) - begin,
                end=min(entry["first_token"] + entry["tokens"], end) - begin,
            )


def _provenance(source: DataSource) -> Sequence[str]:
    """Keys of the provenance tables of a stream, none for a stream that others made."""
    return [i.key for i in source.store.list(DOCUMENTS_DIR) if i.key.endswith(".parquet")]


def _shards(phase: Phase) -> list[list[int]]:
    return [source.shard_samples for source in phase.sources.train]
