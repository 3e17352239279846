"""Check that the tokenizer of pretrained weights gives the same ids as the data's.

Weights belong to ids: on data of another tokenizer every embedding would stand for another word,
and nothing but a bad loss would show it. Compares two `tokenizer.json` files; loads no tokenizer.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stream_pretrain.errors import Fault

TOKENIZER_FILE = "tokenizer.json"


def tokenizer_faults(directory: Path, of_data: bytes) -> list[Fault]:
    """Return a fault where an id means another token in `directory` than in the data.

    There is none where the directory has no `tokenizer.json`. Ids that only one of the two has do
    not count.
    """
    file = directory / TOKENIZER_FILE
    if not file.is_file():
        return []
    theirs, ours = tokens_by_id(file.read_bytes()), tokens_by_id(of_data)
    different = sorted(n for n in theirs.keys() & ours.keys() if theirs[n] != ours[n])
    if not different:
        return []
    first = different[0]
    remedy = (
        f"its {TOKENIZER_FILE} is not the data's: {len(different):,} ids differ, such as {first} "
        f"({theirs[first]!r} there, {ours[first]!r} in the data); convert the data with "
        f"--tokenizer {directory}"
    )
    return [Fault(path="model.init_from", found=str(directory), remedy=remedy)]


def tokens_by_id(text: bytes) -> dict[int, str]:
    """Return the token of each id of a `tokenizer.json`, added tokens included.

    Its `model.vocab` is a mapping, or a list of pairs.
    """
    body: dict[str, Any] = json.loads(text)
    vocabulary = body["model"]["vocab"]
    if isinstance(vocabulary, dict):
        tokens = {number: token for token, number in vocabulary.items()}
    else:
        tokens = {number: pair[0] for number, pair in enumerate(vocabulary)}
    tokens.update({added["id"]: added["content"] for added in body.get("added_tokens") or ()})
    return tokens
