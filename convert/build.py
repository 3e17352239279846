"""`convert-mds build`. In: settings. Out: a dataset directory and its card. The order of the work, as verbs."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import xxhash

from convert.config import BuildConfig
from convert.content import content_hash
from convert.inputs import InputFile, find_inputs
from convert.job import STAGING, Job, TextRules, parse_validation
from convert.parts import Part, automatic_part_size, plan_parts
from convert.place import Place
from convert.publish import Published, publish_splits
from convert.readers import Reading
from convert.receipts import Receipt
from convert.records import Keys
from convert.shards import ShardFormat
from convert.vocabulary import load_vocabulary
from convert.work import Worker
from stream_pretrain.errors import ConfigError
from stream_pretrain.schema import CARD_NAME, TOKENIZER_DIR, Card, SourceFile


def build(config: BuildConfig) -> Card:
    """Convert; the card is what was written last."""
    job = prepare(config)
    parts = plan_parts(
        job.files, config.part_size or automatic_part_size(sum(file.size for file in job.files))
    )
    receipts = run_parts(job, parts)
    published = publish_splits(job, receipts)
    return publish_card(job, config, receipts, published)


def prepare(config: BuildConfig) -> Job:
    """Find and check everything before the first byte is converted."""
    place = Place(Path(config.out))
    if place.size(CARD_NAME) is not None and not config.overwrite:
        raise ConfigError(
            f"--out {config.out}: holds a dataset. Choose another directory, or --overwrite."
        )
    if config.overwrite:
        place.delete_prefix("")
    validation = parse_validation(config.validation)
    vocabulary = load_vocabulary(config.tokenizer, eos=config.eos, bos=config.bos)
    return Job(
        files=tuple(find_inputs(config.input, form=config.format)),
        reading=Reading(keys=Keys(text=config.text_key, id=config.id_key), tail=validation.tail),
        skip_bad_records=config.on_bad_record == "skip",
        text=TextRules(
            min_chars=config.min_chars,
            max_chars=config.max_chars,
            special_in_text=config.special_in_text,
        ),
        vocabulary=vocabulary,
        validation=validation,
        shards=ShardFormat(
            seq_len=config.seq_len,
            dtype=vocabulary.dtype,
            compression=None if config.compression == "none" else config.compression,
            size_limit=config.shard_size,
        ),
        place=place,
        encoder="bytes"
        if vocabulary.is_bytes and config.special_in_text == "plain"
        else "tokenizers",
    )


def run_parts(job: Job, parts: Sequence[Part]) -> list[Receipt]:
    """Convert all parts."""
    worker = Worker(job)
    return [worker.convert(part) for part in parts]


def publish_card(
    job: Job, config: BuildConfig, receipts: Sequence[Receipt], published: dict[str, Published]
) -> Card:
    """Write the tokenizer, then the card; then staging may go."""
    for name, data in job.vocabulary.files.items():
        job.place.write(f"{TOKENIZER_DIR}/{name}", data)
    card = Card(
        seq_len=job.shards.seq_len,
        dtype=job.vocabulary.dtype,
        vocab_size=job.vocabulary.vocab_size,
        tokenizer_fingerprint=job.vocabulary.fingerprint,
        content_hash=content_hash(
            {name: split.rows for name, split in published.items()}, job.shards.seq_len
        ),
        eos_id=job.vocabulary.eos_id,
        bos_id=job.vocabulary.bos_id,
        splits={name: split.counts for name, split in published.items()},
        sources=tuple(_source(number, file, receipts) for number, file in enumerate(job.files)),
        settings=config.recorded(),
        versions={
            name: version(name) for name in ("stream-pretrain", "tokenizers", "zstandard", "numpy")
        },
        notes={"encoder": job.encoder, "tallies": _tallies(receipts)},
    )
    job.place.write(CARD_NAME, card.to_json().encode())
    job.place.delete_prefix(STAGING)
    return card


def _source(number: int, file: InputFile, receipts: Sequence[Receipt]) -> SourceFile:
    counts = [receipt.sources[number] for receipt in receipts if number in receipt.sources]
    digest = xxhash.xxh3_128()
    with Path(file.path).open("rb") as opened:
        while piece := opened.read(1 << 20):
            digest.update(piece)
    return SourceFile(
        name=file.label,
        path=file.path,
        size=file.size,
        xxh3_128=digest.hexdigest(),
        documents=sum(documents for documents, _ in counts),
        tokens=sum(tokens for _, tokens in counts),
    )


def _tallies(receipts: Sequence[Receipt]) -> dict[str, int]:
    total: dict[str, int] = {}
    for receipt in receipts:
        for what, count in receipt.tallies.items():
            total[what] = total.get(what, 0) + count
    return total
