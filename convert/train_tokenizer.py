"""Train a byte-level BPE tokenizer: the work of `convert-mds tokenizer`.

Text files come in, and a directory with the tokenizer comes out. The same input gives the same
file.
"""

from __future__ import annotations

from collections.abc import Iterator

from convert.config import TokenizerConfig
from convert.encoding.byte_tokenizer import END_OF_TEXT, tokenizer_config
from convert.inputs.document import BadRecords, ReadOptions
from convert.inputs.input_files import find_inputs
from convert.inputs.read_task import read_task
from convert.inputs.tasks import LARGEST_PART, plan_tasks
from convert.jobs.staging import check_output_path
from stream_pretrain.errors import ConfigError, DataError
from stream_pretrain.observe.console import Mode, Progress
from stream_pretrain.storage.store import open_store

MIN_VOCAB_SIZE = 257  # 256 bytes and end-of-text
TOKENIZER_JSON = "tokenizer.json"


def train_tokenizer(config: TokenizerConfig, *, progress: Mode = "off") -> int:
    """Train and write the tokenizer, and return the size of its vocabulary.

    The size is below `vocab_size` where the text has too few merges.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    if config.vocab_size < MIN_VOCAB_SIZE:
        raise ConfigError(
            f"--vocab_size {config.vocab_size}: must be at least {MIN_VOCAB_SIZE} (256 bytes and "
            "end-of-text). Give more, or use --tokenizer byte."
        )
    store = open_store(config.out, config.storage)
    check_output_path(store)
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
    files = find_inputs(config.input, file_format=config.format, storage=config.storage)
    options = ReadOptions(
        text_key=config.text_key, separator=config.separator, storage=config.storage
    )
    is_empty = True
    left = config.max_bytes
    total = sum(file.size for file in files)
    with Progress("read", total=total, unit="bytes", mode=progress) as bar:
        for task in plan_tasks(files, LARGEST_PART):
            for document in read_task(task, files, options, BadRecords(can_skip=False)):
                if document.text and (left is None or left > 0):
                    is_empty = False
                    left = None if left is None else left - len(document.text)
                    bar.advance(0, documents=1)
                    yield document.text
            bar.advance(task.size)
    if is_empty:
        raise DataError(f"--input {config.input[0]}: no text in it. Name files that hold text.")
