"""`convert-mds build`. In: settings. Out: a dataset and its card. Here is the order of the work."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from typing import Any

from convert.config import LARGEST_SHARD_SIZE, BuildConfig
from convert.encoding.vocabulary import load_vocabulary
from convert.inputs.document import Reading
from convert.inputs.input_files import find_inputs
from convert.jobs.conversion_job import ConversionJob, TextRules, Validation, parse_validation
from convert.jobs.engines.calls import Call, Engine
from convert.jobs.engines.start_engine import start_engine
from convert.jobs.part_receipts import PartReceipt
from convert.jobs.staging import (
    PriorState,
    check_files,
    claim_output,
    discard,
    owned,
    rollback_on_error,
    sweep,
)
from convert.jobs.tasks import MOST_TASKS, Task, automatic_part_size, plan_tasks
from convert.output.dataset_card import lasting_inputs, make_card
from convert.output.mds_shards import ShardFormat
from convert.output.publish_dataset import Split, gather_splits, publish_splits
from convert.output.verified_write import write_verified
from stream_pretrain.errors import ConfigError
from stream_pretrain.observe.console import Mode, Progress
from stream_pretrain.schema import CARD_NAME, Card
from stream_pretrain.storage.store import open_store

LAYOUT = 1  # of parts and shards: a stopped job of another layout is not taken up


@dataclass(frozen=True, kw_only=True)
class Built:
    """The card, and whether anything was done for it."""

    card: Card
    was_there: bool


def build(config: BuildConfig, *, progress: Mode = "off") -> Built:
    """Convert, or go on where the same job was stopped."""
    with closing(start_engine(config)) as engine:
        job = prepare(config)
        tasks = plan_tasks(job.files, job.part_bytes)
        if len(tasks) > MOST_TASKS:
            raise ConfigError(
                f"--part_size {job.part_bytes}: cuts the input into {len(tasks):,} parts, "
                f"{MOST_TASKS:,} is the most. Leave it out, or give some MiB."
            )
        identity = identify(config, job)
        with owned(job.store):
            before = claim_output(
                job.store, identity, partial(contents, job, engine), overwrite=config.overwrite
            )
            if before.card is not None:
                return Built(card=before.card, was_there=True)
            with _withdrawn(job, config, parts_too=False):
                if job.validation.number:
                    job = replace(job, validation=find_threshold(job, tasks, engine))
                receipts, hashes = run(job, tasks, before, engine, progress)
            check_files(job.store, receipts)
            with _withdrawn(job, config, parts_too=True):
                splits = gather_splits(job, receipts, expect_validation=config.validation != "none")
            card = publish(job, config, receipts, hashes, splits, identity)
    return Built(card=card, was_there=False)


def _withdrawn(
    job: ConversionJob, config: BuildConfig, *, parts_too: bool
) -> AbstractContextManager[None]:
    """Only where nobody else may be writing: tasks of a cluster outlive an error."""
    if job.store.is_local and config.engine == "local":
        return rollback_on_error(job.store, parts_too=parts_too)
    return nullcontext()


def prepare(config: BuildConfig) -> ConversionJob:
    """Find and check everything before the first byte is converted."""
    validation = parse_validation(config.validation)
    vocabulary = load_vocabulary(config.tokenizer, eos=config.eos, bos=config.bos)
    if config.packing == "best_fit" and vocabulary.eos_id is None:
        raise ConfigError(
            "--packing best_fit: pads with end-of-text, and --eos is none. Set --eos."
        )
    files = tuple(find_inputs(config.input, form=config.format, storage=config.storage))
    form = ShardFormat(
        seq_len=config.seq_len,
        dtype=vocabulary.dtype,
        compression=None if config.compression == "none" else config.compression,
        size_limit=config.shard_size,
    )
    _check_sizes(config, form)
    part_bytes = config.part_size or automatic_part_size(sum(file.size for file in files))
    return ConversionJob(
        files=files,
        reading=Reading(
            text_key=config.text_key,
            id_key=config.id_key,
            separator=config.separator,
            tail=validation.tail,
            storage=config.storage,
        ),
        skip_bad_records=config.on_bad_record == "skip",
        text=TextRules(
            min_chars=config.min_chars,
            max_chars=config.max_chars,
            special_in_text=config.special_in_text,
        ),
        vocabulary=vocabulary,
        validation=validation,
        packing=config.packing,
        shards=form,
        part_bytes=part_bytes,
        encoder=config.encoder,
        store=open_store(config.out, config.storage),
    )


def _check_sizes(config: BuildConfig, form: ShardFormat) -> None:
    """A shard holds at least one sample."""
    if form.row_bytes <= form.size_limit:
        return
    place = f"--seq_len {config.seq_len} --shard_size {config.shard_size}"
    if form.row_bytes > LARGEST_SHARD_SIZE:
        remedy = "Give a smaller --seq_len: a shard is below 4 GiB"
    else:
        remedy = f"Give a --shard_size of at least {form.row_bytes}, or a smaller --seq_len"
    raise ConfigError(
        f"{place}: one sample takes {form.row_bytes} bytes, more than a shard. {remedy}."
    )


def identify(config: BuildConfig, job: ConversionJob) -> dict[str, Any]:
    """What must be the same for a stopped conversion to go on: settings, inputs, tokenizer.

    With the inputs' modification times, so it stays in the staging area.
    """
    settings = config.recorded()
    del settings["input"], settings["tokenizer"]
    return {
        "layout": LAYOUT,
        "settings": settings,
        "part_bytes": job.part_bytes,
        "tokenizer": job.vocabulary.fingerprint,
        "zstandard": version("zstandard") if job.shards.compression else None,
        "inputs": {file.label: [file.size, file.stamp] for file in job.files},
    }


def contents(job: ConversionJob, engine: Engine) -> dict[str, list[Any]]:
    """Size and hash of every input, which reads them all."""
    return lasting_inputs(job, dict(engine.run(job, _source_calls(job), lambda *_: None)))


def _source_calls(job: ConversionJob) -> list[Call]:
    return [
        Call(kind="source", number=number)
        for number, file in enumerate(job.files)
        if not (file.is_remote or file.is_stdin)
    ]


def find_threshold(job: ConversionJob, tasks: Sequence[Task], engine: Engine) -> Validation:
    """A pass over the ids: the hash below which there are so many documents."""
    number = job.validation.number
    if any(file.is_stdin for file in job.files):
        raise ConfigError(
            f"--validation {number}: a number needs a second pass, and standard input has one. "
            "Give a share."
        )
    calls = [Call(kind="hashes", task=task, number=number + 1) for task in tasks]
    found = heapq.merge(*engine.run(job, calls, lambda *_: None))
    smallest = heapq.nsmallest(number + 1, found)
    if len(smallest) <= number:
        raise ConfigError(
            f"--validation {number}: the input has {len(smallest)} documents, so none would be "
            "left to train on. Give a smaller number."
        )
    return Validation(number=number, below=smallest[number])


def run(
    job: ConversionJob, tasks: Sequence[Task], before: PriorState, engine: Engine, progress: Mode
) -> tuple[list[PartReceipt], dict[int, str]]:
    """Convert what is not done; all receipts in stream order, and the sources' hashes."""
    calls = _source_calls(job)
    receipts = {(r.task, r.part): r for done in before.receipts.values() for r in done.values()}
    for task in tasks:
        done = before.receipts.get(task.index, {})
        if not any(receipt.is_last for receipt in done.values()):
            calls.append(Call(kind="convert", task=task, done=done))
    hashes: dict[int, str] = {}
    with Progress(
        "convert", total=sum(task.size for task in tasks), unit="bytes", mode=progress
    ) as bar:
        bar.start_from(_size_done(tasks, before))
        if receipts:
            bar.print_line(f"{len(receipts)} finished parts are kept")

        def count(size: int, documents: int, tokens: int) -> None:
            bar.advance(size, documents=documents, tokens=tokens)

        for result in engine.run(job, calls, count):
            if isinstance(result, tuple):
                hashes[result[0]] = result[1]
            else:
                receipts.update({(receipt.task, receipt.part): receipt for receipt in result})
    return [receipt for _, receipt in sorted(receipts.items())], hashes


def _size_done(tasks: Sequence[Task], before: PriorState) -> int:
    done = before.receipts
    return sum(
        task.size
        for task in tasks
        if any(receipt.is_last for receipt in done.get(task.index, {}).values())
    )


def publish(
    job: ConversionJob,
    config: BuildConfig,
    receipts: Sequence[PartReceipt],
    hashes: Mapping[int, str],
    splits: Mapping[str, Split],
    identity: Mapping[str, Any],
) -> Card:
    """Write the splits, then the card; then staging may go."""
    published = publish_splits(job, splits)
    card = make_card(job, config, receipts, hashes, published, identity)
    sweep(job.store)
    write_verified(job.store, CARD_NAME, card.to_json().encode())
    discard(job.store)
    return card
