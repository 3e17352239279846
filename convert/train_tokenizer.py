"""`convert-mds tokenizer`. In: text files. Out: a byte-level BPE in a directory. The same input gives the same file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from convert.byte_tokenizer import END_OF_TEXT, tokenizer_config
from convert.inputs import find_inputs
from convert.parts import LARGEST_PART, plan_parts
from convert.place import Place
from convert.readers import BadRecords, Reading, read_part
from convert.records import Keys
from stream_pretrain.errors import ConfigError, DataError

LEAST_VOCABULARY = 257  # 256 bytes and end-of-text


def train_tokenizer(
    inputs: Sequence[str], vocab_size: int, out: str, *, text_key: str = "text"
) -> int:
    """Train and write; the size of the vocabulary, which a small corpus may keep below what was asked for."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    if vocab_size < LEAST_VOCABULARY:
        raise ConfigError(
            f"--vocab_size {vocab_size}: must be at least {LEAST_VOCABULARY} (256 bytes and end-of-text). "
            "Give more, or use --tokenizer byte."
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(inputs, text_key), trainer=trainer)
    place = Place(Path(out))
    place.write("tokenizer_config.json", tokenizer_config())
    place.write("tokenizer.json", tokenizer.to_str(pretty=True).encode())
    return tokenizer.get_vocab_size()


def _texts(inputs: Sequence[str], text_key: str) -> Iterator[str]:
    files = find_inputs(inputs)
    found = False
    for part in plan_parts(files, LARGEST_PART):
        for document in read_part(part, files, Reading(keys=Keys(text=text_key)), BadRecords()):
            if document.text:
                found = True
                yield document.text
    if not found:
        raise DataError(f"--input {inputs[0]}: no text in it. Name files that hold text.")
