"""Make the files of the built-in `byte` tokenizer.

It has 256 tokens, one for each byte value with that value as its id, and end-of-text with id 256.
Its `tokenizer.json` is a byte-level BPE without merges, so `tokenizers`, `transformers` and LitGPT
load it like any other.
"""

from __future__ import annotations

import json

END_OF_TEXT = "<|endoftext|>"
END_OF_TEXT_ID = 256


def byte_characters() -> list[str]:
    """Return the character that stands for each byte value in a byte-level BPE.

    Printable Latin-1 characters stand for themselves, and the rest is counted from U+0100.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(value) if value in printable else chr(next(spare)) for value in range(256)]


def byte_tokenizer_files() -> dict[str, bytes]:
    """Return the contents of the tokenizer directory by file name."""
    vocabulary = {character: value for value, character in enumerate(byte_characters())}
    vocabulary[END_OF_TEXT] = END_OF_TEXT_ID
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    tokenizer: dict[str, object] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [end_of_text_token(END_OF_TEXT_ID)],
        "normalizer": None,
        "pre_tokenizer": {**byte_level, "use_regex": False},
        "post_processor": None,
        "decoder": {**byte_level, "use_regex": False},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": [],
        },
    }
    text = json.dumps(tokenizer, ensure_ascii=False, indent=1) + "\n"
    return {"tokenizer.json": text.encode(), "tokenizer_config.json": tokenizer_config()}


def end_of_text_token(token_id: int) -> dict[str, object]:
    """Return the `added_tokens` entry of end-of-text."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": token_id, "content": END_OF_TEXT, **flags, "special": True}


def tokenizer_config() -> bytes:
    """Return `tokenizer_config.json`: the class and the EOS for `transformers` and LitGPT."""
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END_OF_TEXT,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1 << 30,
    }
    return (json.dumps(config, indent=2, sort_keys=True) + "\n").encode()
