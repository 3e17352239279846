"""Facts about the data of a run. In: the configuration. Out: `StreamFacts` for `plan`. Downloads
indexes, no shards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stream_pretrain.config.sections import Config, StreamConfig
from stream_pretrain.data.reading.infer_row_format import measure
from stream_pretrain.errors import ConfigError, DataError, Fault
from stream_pretrain.mds.index import StreamIndex, find_stream, read_index
from stream_pretrain.model.tokenizer_match import TOKENIZER_FILE
from stream_pretrain.schema import StreamFacts
from stream_pretrain.storage.store import Store, open_store


@dataclass(frozen=True, kw_only=True)
class DataSource:
    """A stream of the configuration with what was found there. `store` is where its shards are."""

    config: StreamConfig
    facts: StreamFacts
    store: Store
    index: StreamIndex

    @property
    def shard_samples(self) -> list[int]:
        """Samples in each shard."""
        return [shard.samples for shard in self.index.shards]


@dataclass(frozen=True, kw_only=True)
class DataSources:
    """All streams of a run: `train` in order, `validation_sets` by name of the validation set."""

    train: tuple[DataSource, ...]
    validation_sets: Mapping[str, tuple[DataSource, ...]]


def gather(config: Config) -> DataSources:
    """Read every index and card; all that cannot be read is reported together.

    Raises:
        ConfigError: streams that are not there, or have no validation split that was asked for.
    """
    faults: list[Fault] = []
    train = _sources(config, config.data.train, "train", "data.train", faults)
    if config.data.validation:
        held = _sources(config, config.data.validation, "validation", "data.validation", faults)
    else:
        held = _own_validation(config, train)
    if faults:
        raise ConfigError.of(faults)
    return DataSources(
        train=tuple(train), validation_sets={source.facts.name: (source,) for source in held}
    )


def _sources(
    config: Config, streams: tuple[StreamConfig, ...], split: str, path: str, faults: list[Fault]
) -> list[DataSource]:
    found = []
    for place, stream in enumerate(streams):
        try:
            found.append(_source(config, stream, split))
        except DataError as error:
            faults.append(Fault(path=f"{path}.{place}", found=stream.location, remedy=str(error)))
    return found


def _own_validation(config: Config, train: list[DataSource]) -> list[DataSource]:
    """The validation splits of the training datasets, those that have one."""
    held = []
    for source in train:
        card = source.facts.card
        if card is not None and card.splits.get("validation", None) is not None:
            if card.splits["validation"].samples == 0:
                continue
            held.append(_source(config, source.config, "validation"))
    return held


def _source(config: Config, stream: StreamConfig, split: str) -> DataSource:
    root = open_store(stream.location, config.storage_of(stream))
    store, card = find_stream(root, stream.split or split)
    index = measure(read_index(store, card), store, seq_len=config.data.seq_len)
    return DataSource(config=stream, facts=index.facts(stream.label), store=store, index=index)


def tokenizer_files(source: DataSource, config: Config) -> tuple[Store, str] | None:
    """Where the tokenizer of a run lies: the dataset's own copy, else the configured one. (store,
    prefix)
    """
    if source.facts.card is not None:
        return open_store(source.config.location, config.storage_of(source.config)), "tokenizer"
    if config.data.tokenizer is not None:
        path = Path(config.data.tokenizer)
        return (open_store(path), "") if path.is_dir() else (open_store(path.parent), path.name)
    return None


def tokenizer_json(source: DataSource, config: Config) -> bytes | None:
    """The `tokenizer.json` of a run's data; None where nothing names one."""
    place = tokenizer_files(source, config)
    if place is None:
        return None
    store, prefix = place
    key = prefix if prefix.endswith(TOKENIZER_FILE) else f"{prefix}/{TOKENIZER_FILE}".lstrip("/")
    return None if store.head(key) is None else store.read(key)
