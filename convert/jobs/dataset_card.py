"""Make the card of a dataset.

A job, its receipts and the published splits come in, and a `Card` comes out; it is not written
here. The same input files in another directory, or copied later, give the same card.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from convert.config import BuildConfig
from convert.inputs.input_files import InputFile, portable_name
from convert.jobs.conversion_job import ConversionJob
from convert.jobs.part_receipts import PartReceipt
from convert.jobs.publish_dataset import PublishedSplit, count_repeated_ids
from convert.output.content_hash import content_hash
from stream_pretrain.schema import Card, SourceFile


def make_card(
    job: ConversionJob,
    config: BuildConfig,
    receipts: Sequence[PartReceipt],
    hashes: Mapping[int, str],
    published: Mapping[str, PublishedSplit],
    identity: Mapping[str, Any],
) -> Card:
    """Return the card; it holds neither the directories of local inputs nor their times."""
    rows = {name: split.rows for name, split in published.items()}
    padding = {name: split.padding for name, split in published.items() if split.padding}
    bad_records = [line for receipt in receipts for line in receipt.bad_records][:20]
    return Card(
        seq_len=job.shard_format.seq_len,
        dtype=job.vocabulary.dtype,
        vocab_size=job.vocabulary.vocab_size,
        tokenizer_fingerprint=job.vocabulary.fingerprint,
        content_hash=content_hash(rows, job.shard_format.seq_len),
        eos_id=job.vocabulary.eos_id,
        bos_id=job.vocabulary.bos_id,
        splits={name: split.counts for name, split in published.items()},
        sources=tuple(
            _source(file, number, receipts, hashes) for number, file in enumerate(job.files)
        ),
        settings=_portable_settings(config),
        versions={name: version(name) for name in ("stream-pretrain", "tokenizers", "zstandard")},
        notes={
            "job": {**identity, "inputs": portable_inputs(job, hashes)},
            "encoder": dict(receipts[0].encoder),
            "tallies": _tallies(job, receipts),
            "padding": padding,
            "documents": {
                key: digest
                for split in published.values()
                for key, digest in split.documents.items()
            },
            "bad_records": [_without_path(line, job.files) for line in bad_records],
        },
    )


def portable_inputs(job: ConversionJob, hashes: Mapping[int, str]) -> dict[str, list[Any]]:
    """Return what the card keeps of the inputs: the same for a copy of the files elsewhere."""
    return {
        file.label: [file.size, hashes.get(number, file.stamp)]
        for number, file in enumerate(job.files)
    }


def _portable_settings(config: BuildConfig) -> dict[str, Any]:
    """Return the settings without the directories of local files."""
    settings = config.content_settings()
    settings["input"] = [portable_name(value) for value in config.input]
    if Path(config.tokenizer).expanduser().exists():
        settings["tokenizer"] = Path(config.tokenizer).expanduser().resolve().name
    return settings


def _source(
    file: InputFile, number: int, receipts: Sequence[PartReceipt], hashes: Mapping[int, str]
) -> SourceFile:
    counts = [receipt.sources[number] for receipt in receipts if number in receipt.sources]
    return SourceFile(
        name=file.label,
        path=file.path if file.is_remote else file.label,
        size=file.size,
        xxh3_128=hashes.get(number, ""),
        documents=sum(documents for documents, _ in counts),
        tokens=sum(tokens for _, tokens in counts),
    )


def _without_path(line: str, files: Sequence[InputFile]) -> str:
    """Return a message with the file's label instead of its path."""
    for file in files:
        if not file.is_remote and line.startswith(f"{file.path},"):
            return file.label + line[len(file.path) :]
    return line


def _tallies(job: ConversionJob, receipts: Sequence[PartReceipt]) -> dict[str, int]:
    total: dict[str, int] = {}
    for receipt in receipts:
        for name, count in receipt.tallies.items():
            total[name] = total.get(name, 0) + count
    repeated = count_repeated_ids(job, receipts)
    return {**total, "repeated_ids": repeated} if repeated else total
