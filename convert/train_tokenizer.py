"""`convert-mds tokenizer`. In: text files. Out: a byte-level BPE in a directory.

The same input gives the same file.
"""

from __future__ import annotations

from collections.abc import Iterator

from convert.config import TokenizerConfig
from convert.encoding.byte_tokenizer import END_OF_TEXT, tokenizer_config
from convert.inputs.document import BadRecords, Reading
from convert.inputs.input_files import find_inputs
from convert.inputs.read_task import read_task
from convert.inputs.tasks import LARGEST_PART, plan_tasks
from convert.jobs.staging import check_out
from stream_pretrain.errors import ConfigError, DataError
from stream_pretrain.observe.console import Mode, Progress
from stream_pretrain.storage.store import open_store

LEAST_VOCABULARY = 257  # 256 bytes and end-of-text
TOKENIZER_JSON = "tokenizer.json"


def train_tokenizer(config: TokenizerConfig, *, progress: Mode = "off") -> int:
    """Train and write; the size of the vocabulary, which a small corpus may keep below the wish."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    if config.vocab_size < LEAST_VOCABULARY:
        raise ConfigError(
            f"--vocab_size {config.vocab_size}: must be at least {LEAST_VOCABULARY} (256 bytes and "
            "end-of-text). Give more, or use --tokenizer byte."
        )
    store = open_store(config.out, config.storage)
    check_out(store)
    if store.head(TOKENIZER_JSON) is not None and not config.overwrite:
        raise ConfigError(
            f"--out {config.out}: holds a tokenizer. Choose another directory, or --overwrite."
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(config, progress), trainer=trainer)
    store.write("tokenizer_config.json", tokenizer_config())
    store.write(TOKENIZER_JSON, tokenizer.to_str(pretty=True).encode())
    return int(tokenizer.get_vocab_size())


def _texts(config: TokenizerConfig, progress: Mode) -> Iterator[str]:
    files = find_inputs(config.input, form=config.format, storage=config.storage)
    how = Reading(text_key=config.text_key, separator=config.separator, storage=config.storage)
    found = False
    left = config.max_bytes
    total = sum(file.size for file in files)
    with Progress("read", total=total, unit="bytes", mode=progress) as bar:
        for task in plan_tasks(files, LARGEST_PART):
            for document in read_task(task, files, how, BadRecords(can_skip=False)):
                if document.text and (left is None or left > 0):
                    found = True
                    left = None if left is None else left - len(document.text)
                    bar.advance(0, documents=1)
                    yield document.text
            bar.advance(task.size)
    if not found:
        raise DataError(f"--input {config.input[0]}: no text in it. Name files that hold text.")
