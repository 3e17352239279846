"""The commands `stream-pretrain export` and `generate`.

Each takes parsed arguments, prints to standard output and returns an exit code.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from stream_pretrain.errors import ConfigError, Fault
from stream_pretrain.export.generate import Sampling, generate_ids
from stream_pretrain.export.huggingface import export_huggingface
from stream_pretrain.export.litgpt import export_litgpt
from stream_pretrain.export.trained_model import TrainedModel, read_trained_model
from stream_pretrain.storage.store import open_store

_FORMATS = {"litgpt": export_litgpt, "huggingface": export_huggingface}


def export(arguments: argparse.Namespace) -> int:
    """Write a checkpoint as a LitGPT or Hugging Face directory."""
    trained = read_trained_model(open_store(arguments.run, arguments.storage), arguments.step)
    out = Path(arguments.out)
    parity = _FORMATS[arguments.format](trained, out)
    if arguments.as_json:
        facts = {
            "format": arguments.format,
            "out": str(out),
            "step": trained.step,
            "files": sorted(path.name for path in out.iterdir()),
            "largest_logit_difference": parity.largest,
        }
        print(json.dumps(facts))
        return 0
    print(f"Wrote step {trained.step} to {out} ({arguments.format}).")
    print(f"Its logits, computed by {arguments.format}, differ by at most {parity.largest:.2g}.")
    if trained.tokenizer is None:
        print("The run had no tokenizer; add its files to the directory before use.")
    return 0


def generate(arguments: argparse.Namespace) -> int:
    """Print text that the model samples after a prompt."""
    trained = read_trained_model(open_store(arguments.run, arguments.storage), arguments.step)
    if trained.tokenizer is None:
        remedy = "this run has no tokenizer; set data.tokenizer, or convert the data with one"
        raise ConfigError.of([Fault(path="run", found=arguments.run, remedy=remedy)])
    sampling = Sampling(
        max_tokens=arguments.max_tokens,
        temperature=arguments.temperature,
        top_k=arguments.top_k,
        seed=arguments.seed,
    )
    tokenizer = trained.tokenizer.tokenizer()
    prompt = tokenizer.encode(arguments.prompt, add_special_tokens=False).ids
    new = list(
        _generate(trained, prompt, sampling, live=not arguments.as_json, prefix=arguments.prompt)
    )
    if arguments.as_json:
        text = arguments.prompt + tokenizer.decode(new)
        print(json.dumps({"step": trained.step, "text": text, "new_tokens": len(new)}))
    return 0


def _generate(
    trained: TrainedModel, prompt: list[int], sampling: Sampling, *, live: bool, prefix: str
) -> list[int]:
    """Return the new ids; with `live` print their text as it comes, after `prefix`."""
    assert trained.tokenizer is not None
    tokenizer = trained.tokenizer.tokenizer()
    new: list[int] = []
    printed = ""
    if live:
        sys.stdout.write(prefix)
    for token in generate_ids(trained, prompt, sampling):
        new.append(token)
        text = tokenizer.decode(new)
        if live and not text.endswith("\N{REPLACEMENT CHARACTER}"):  # half of a character
            sys.stdout.write(text[len(printed) :])
            sys.stdout.flush()
            printed = text
    if live:
        sys.stdout.write(tokenizer.decode(new)[len(printed) :] + "\n")
    return new
