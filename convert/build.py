"""Convert text to a dataset: the order of the work of `convert-mds build`.

Settings come in; the dataset is written, and its card comes out. A stopped job continues where it
was.
"""

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
from convert.inputs.document import ReadOptions
from convert.inputs.input_files import find_inputs
from convert.inputs.tasks import MAX_TASKS, Task, automatic_part_size, plan_tasks
from convert.jobs.conversion_job import ConversionJob, TextRules, Validation, parse_validation
from convert.jobs.dataset_card import make_card, portable_inputs
from convert.jobs.engines.calls import Call, Engine
from convert.jobs.engines.start_engine import start_engine
from convert.jobs.part_receipts import PartReceipt
from convert.jobs.part_writer import write_verified
from convert.jobs.publish_dataset import SplitPublisher, collect_splits, publish_splits
from convert.jobs.staging import (
    PriorState,
    check_files,
    claim_output,
    lock_output,
    remove_staging,
    remove_temporary_files,
    rollback_on_error,
)
from convert.output.mds_shards import ShardFormat
from stream_pretrain.errors import ConfigError
from stream_pretrain.observe.console import Mode, Progress
from stream_pretrain.schema import CARD_NAME, Card
from stream_pretrain.storage.store import open_store

LAYOUT = 1  # of parts and shards: a stopped job of another layout is not continued


@dataclass(frozen=True, kw_only=True)
class BuildResult:
    """The card of the dataset, and whether it was there already."""

    card: Card
    already_built: bool


def build(config: BuildConfig, *, progress: Mode = "off") -> BuildResult:
    """Convert, or continue where the same job was stopped.

    Raises `ConfigError` where the output holds something else, `DataError` for inputs that cannot
    be converted, `StorageError` and `OwnerError`.
    """
    with closing(start_engine(config)) as engine:
        job = prepare(config)
        tasks = plan_tasks(job.files, job.part_bytes)
        if len(tasks) > MAX_TASKS:
            raise ConfigError(
                f"--part_size {job.part_bytes}: cuts the input into {len(tasks):,} parts, "
                f"{MAX_TASKS:,} is the most. Leave it out, or give some MiB."
            )
        identity = job_identity(config, job)
        with lock_output(job.store):
            prior = claim_output(
                job.store, identity, partial(hash_inputs, job, engine), overwrite=config.overwrite
            )
            if prior.card is not None:
                return BuildResult(card=prior.card, already_built=True)
            with _rollback(job, config, parts_too=False):
                if job.validation.number:
                    job = replace(job, validation=find_threshold(job, tasks, engine))
                receipts, hashes = run_tasks(job, tasks, prior, engine, progress)
            check_files(job.store, receipts)
            with _rollback(job, config, parts_too=True):
                splits = collect_splits(
                    job, receipts, expect_validation=config.validation != "none"
                )
            card = publish(job, config, receipts, hashes, splits, identity)
    return BuildResult(card=card, already_built=False)


def _rollback(
    job: ConversionJob, config: BuildConfig, *, parts_too: bool
) -> AbstractContextManager[None]:
    """Roll back on an error, unless tasks of a cluster, which outlive it, may still write."""
    if job.store.is_local and config.engine == "local":
        return rollback_on_error(job.store, parts_too=parts_too)
    return nullcontext()


def prepare(config: BuildConfig) -> ConversionJob:
    """Find and check everything before the first byte is converted, and return the job."""
    validation = parse_validation(config.validation)
    vocabulary = load_vocabulary(config.tokenizer, eos=config.eos, bos=config.bos)
    if config.packing == "best_fit" and vocabulary.eos_id is None:
        raise ConfigError(
            "--packing best_fit: pads with end-of-text, and --eos is none. Set --eos."
        )
    files = tuple(find_inputs(config.input, file_format=config.format, storage=config.storage))
    shard_format = ShardFormat(
        seq_len=config.seq_len,
        dtype=vocabulary.dtype,
        compression=None if config.compression == "none" else config.compression,
        size_limit=config.shard_size,
    )
    _check_sizes(config, shard_format)
    part_bytes = config.part_size or automatic_part_size(sum(file.size for file in files))
    return ConversionJob(
        files=files,
        read_options=ReadOptions(
            text_key=config.text_key,
            id_key=config.id_key,
            separator=config.separator,
            tail=validation.tail,
            storage=config.storage,
        ),
        skip_bad_records=config.on_bad_record == "skip",
        text_rules=TextRules(
            min_chars=config.min_chars,
            max_chars=config.max_chars,
            special_in_text=config.special_in_text,
        ),
        vocabulary=vocabulary,
        validation=validation,
        packing=config.packing,
        shard_format=shard_format,
        part_bytes=part_bytes,
        encoder=config.encoder,
        store=open_store(config.out, config.storage),
    )


def _check_sizes(config: BuildConfig, shard_format: ShardFormat) -> None:
    """Raise `ConfigError` where one sample is larger than a shard."""
    if shard_format.row_bytes <= shard_format.size_limit:
        return
    flags = f"--seq_len {config.seq_len} --shard_size {config.shard_size}"
    if shard_format.row_bytes > LARGEST_SHARD_SIZE:
        remedy = "Give a smaller --seq_len: a shard is below 4 GiB"
    else:
        remedy = f"Give a --shard_size of at least {shard_format.row_bytes}, or a smaller --seq_len"
    raise ConfigError(
        f"{flags}: one sample takes {shard_format.row_bytes} bytes, more than a shard. {remedy}."
    )


def job_identity(config: BuildConfig, job: ConversionJob) -> dict[str, Any]:
    """Return what has to be the same for a stopped conversion to go on.

    These are the settings, the inputs and the tokenizer. The inputs' modification times are among
    them, so the identity stays in the staging area.
    """
    settings = config.content_settings()
    del settings["input"], settings["tokenizer"]
    return {
        "layout": LAYOUT,
        "settings": settings,
        "part_bytes": job.part_bytes,
        "tokenizer": job.vocabulary.fingerprint,
        "zstandard": version("zstandard") if job.shard_format.compression else None,
        "inputs": {file.label: [file.size, file.stamp] for file in job.files},
    }


def hash_inputs(job: ConversionJob, engine: Engine) -> dict[str, list[Any]]:
    """Return the size and hash of every input; this reads them all."""
    return portable_inputs(job, dict(engine.run(job, _source_calls(job), lambda *_: None)))


def _source_calls(job: ConversionJob) -> list[Call]:
    return [
        Call(kind="source", number=number)
        for number, file in enumerate(job.files)
        if not (file.is_remote or file.is_stdin)
    ]


def find_threshold(job: ConversionJob, tasks: Sequence[Task], engine: Engine) -> Validation:
    """Read all ids, and return the hash below which there are as many documents as asked for."""
    number = job.validation.number
    if any(file.is_stdin for file in job.files):
        raise ConfigError(
            f"--validation {number}: a number needs a second pass, and standard input has one. "
            "Give a share."
        )
    calls = [Call(kind="hashes", task=task, number=number + 1) for task in tasks]
    hashes = heapq.merge(*engine.run(job, calls, lambda *_: None))
    smallest = heapq.nsmallest(number + 1, hashes)
    if len(smallest) <= number:
        raise ConfigError(
            f"--validation {number}: the input has {len(smallest)} documents, so none would be "
            "left to train on. Give a smaller number."
        )
    return Validation(number=number, below=smallest[number])


def run_tasks(
    job: ConversionJob, tasks: Sequence[Task], prior: PriorState, engine: Engine, progress: Mode
) -> tuple[list[PartReceipt], dict[int, str]]:
    """Convert what is not done.

    Returns all receipts in stream order, and the hashes of the input files by number.
    """
    calls = _source_calls(job)
    receipts = {(r.task, r.part): r for done in prior.receipts.values() for r in done.values()}
    for task in tasks:
        done = prior.receipts.get(task.index, {})
        if not any(receipt.is_last for receipt in done.values()):
            calls.append(Call(kind="convert", task=task, done=done))
    hashes: dict[int, str] = {}
    with Progress(
        "convert", total=sum(task.size for task in tasks), unit="bytes", mode=progress
    ) as bar:
        bar.start_from(_size_done(tasks, prior))
        if receipts:
            bar.print_line(f"{len(receipts)} finished parts are kept")

        def on_progress(size: int, documents: int, tokens: int) -> None:
            bar.advance(size, documents=documents, tokens=tokens)

        for result in engine.run(job, calls, on_progress):
            if isinstance(result, tuple):
                hashes[result[0]] = result[1]
            else:
                receipts.update({(receipt.task, receipt.part): receipt for receipt in result})
    return [receipt for _, receipt in sorted(receipts.items())], hashes


def _size_done(tasks: Sequence[Task], prior: PriorState) -> int:
    done = prior.receipts
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
    splits: Mapping[str, SplitPublisher],
    identity: Mapping[str, Any],
) -> Card:
    """Write the splits, then the card; then remove the staging files."""
    published = publish_splits(job, splits)
    card = make_card(job, config, receipts, hashes, published, identity)
    remove_temporary_files(job.store)
    write_verified(job.store, CARD_NAME, card.to_json().encode())
    remove_staging(job.store)
    return card
