"""Everything that is known before a process is launched. In: a configuration. Out: `Prepared`, or
every fault at once. Reads indexes and cards; starts nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from stream_pretrain.config.sections import Config
from stream_pretrain.errors import ConfigError, Fault
from stream_pretrain.model.protocol import check_document_mask
from stream_pretrain.model.registry import find_model, model_facts, setting_faults
from stream_pretrain.model.tokenizer_match import tokenizer_faults
from stream_pretrain.optim.build_optimizer import check_optimizer
from stream_pretrain.plan import Plan, plan, sequence_length
from stream_pretrain.runtime.launch import compute_faults, requested_world
from stream_pretrain.storage.hashing import xxh3_128_of
from stream_pretrain.train.data_sources import DataSources, gather, tokenizer_json
from stream_pretrain.train.loggers import logger_faults
from stream_pretrain.train.model_setup import SHARDED

if TYPE_CHECKING:
    pass

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What is known before any process is launched: it costs no more than reading indexes."""

    config: Config
    sources: DataSources
    plan: Plan


def prepare(config: Config) -> Prepared:
    """Gather facts and derive the plan; every fault of both together with what was found.

    Raises:
        ConfigError: what does not fit. Nothing was started.
    """
    compute = config.compute
    world = requested_world(compute)
    faults = [
        *logger_faults(config.logging.loggers),
        *check_optimizer(config.optimizer, sharded=compute.strategy in SHARDED),
        *compute_faults(compute, world),
    ]
    sources = collected(lambda: gather(config), faults)
    definition = collected(lambda: find_model(config.model), faults)
    if sources is None or definition is None:
        raise ConfigError.of(faults)
    streams = [source.facts for source in sources.train]
    held = {name: [s.facts for s in found] for name, found in sources.validation_sets.items()}
    faults += check_document_mask(config.model, eos_id_of(sources))
    faults += setting_faults(config, definition)
    faults += _tokenizer_copy_faults(config, sources)
    faults += _init_from_faults(config, sources)
    model = model_facts(config.model, seq_len=sequence_length(config, streams))
    planned = plan(config, world, streams, held, model, prior_faults=faults)
    return Prepared(config=config, sources=sources, plan=planned)


def _tokenizer_copy_faults(config: Config, sources: DataSources) -> list[Fault]:
    """The tokenizer that travels with every checkpoint must be the one that made the ids."""
    faults = []
    for place, source in enumerate(sources.train):
        card = source.facts.card
        found = tokenizer_json(source, config) if card is not None else None
        if card is None or found is None:
            continue
        digest = xxh3_128_of(found)
        if digest != card.tokenizer_fingerprint:
            faults.append(
                Fault(
                    path=f"data.train.{place}",
                    found=f"{source.config.location}, tokenizer.json of hash {digest}",
                    remedy=f"the card says {card.tokenizer_fingerprint}; restore the file",
                )
            )
    return faults


def _init_from_faults(config: Config, sources: DataSources) -> list[Fault]:
    """Weights to go on from must know the data's ids."""
    if config.model.init_from is None:
        return []
    of_data = tokenizer_json(sources.train[0], config)
    return [] if of_data is None else tokenizer_faults(Path(config.model.init_from), of_data)


def collected(work: Callable[[], _T], faults: list[Fault]) -> _T | None:
    """What `work` gives; None where it is refused, its faults then are among `faults`."""
    try:
        return work()
    except ConfigError as error:
        faults.extend(error.faults)
        if not error.faults:
            raise
        return None


def eos_id_of(sources: DataSources) -> int | None:
    """The end-of-text id of the training data, whose streams have one tokenizer."""
    card = sources.train[0].facts.card
    return card.eos_id if card else None
