"""Do two `tokenizer.json` files give the same ids? In: a checkpoint directory, the data's file.
Out: a fault, or none.

Weights that are trained on belong to ids: on data of another tokenizer every embedding would stand
for another word, and nothing but a bad loss would say so. Loads no tokenizer.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stream_pretrain.errors import Fault

TOKENIZER_FILE = "tokenizer.json"


def tokenizer_faults(directory: Path, of_data: bytes) -> list[Fault]:
    """A fault where an id means another token in `directory` than in the data; none where it has no
    `tokenizer.json`. Ids that only one of them has do not count."""
    file = directory / TOKENIZER_FILE
    if not file.is_file():
        return []
    there, here = tokens_by_id(file.read_bytes()), tokens_by_id(of_data)
    different = sorted(n for n in there.keys() & here.keys() if there[n] != here[n])
    if not different:
        return []
    first = different[0]
    remedy = (
        f"its {TOKENIZER_FILE} is not the data's: {len(different):,} ids differ, such as {first} "
        f"({there[first]!r} there, {here[first]!r} in the data); convert the data with --tokenizer "
        f"{directory}"
    )
    return [Fault(path="model.init_from", found=str(directory), remedy=remedy)]


def tokens_by_id(text: bytes) -> dict[int, str]:
    """Id -> token, added tokens included; `model.vocab` is a mapping, or a list of pairs."""
    body: dict[str, Any] = json.loads(text)
    vocabulary = body["model"]["vocab"]
    if isinstance(vocabulary, dict):
        found = {number: token for token, number in vocabulary.items()}
    else:
        found = {number: pair[0] for number, pair in enumerate(vocabulary)}
    found.update({added["id"]: added["content"] for added in body.get("added_tokens") or ()})
    return found
