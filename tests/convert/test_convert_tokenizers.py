"""Tokenizers: which are found, what encodes, and that the ids are those of `tokenizers`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from corpora import build, card_of, command, rows_of, texts, write_jsonl

from convert.encoding.byte_tokenizer import END_OF_TEXT, byte_tokenizer_files
from convert.encoding.encoder_check import (
    DIFFICULT_STRINGS,
    check_part,
    checked_gigatoken,
    choose_encoder,
    same_ids,
)
from convert.encoding.encoders import ByteEncoder, GigatokenEncoder, TokenizersEncoder
from convert.encoding.fallback_encoder import (
    LAST_CODE_POINT,
    CharacterCheck,
    FallbackEncoder,
    probe_json,
    probe_text,
    unproven_characters,
)
from convert.encoding.vocabulary import Vocabulary, load_vocabulary
from stream_pretrain.errors import ConfigError, DataError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level BPE of 600 tokens, trained by the command."""
    from convert.cli import main

    folder = tmp_path_factory.mktemp("bpe")
    (folder / "c.txt").write_text("\n".join(texts(300)) + Path(argparse.__file__).read_text())
    words = ["--input", str(folder / "c.txt"), "--out", str(folder / "tok"), "--vocab_size", "600"]
    assert main(["tokenizer", *words, "--quiet"]) == 0
    return folder / "tok"


@pytest.fixture
def vocabulary(folder: Path) -> Vocabulary:
    return load_vocabulary(str(folder))


def test_training_is_deterministic(folder: Path, tmp_path: Path, capsys: Any) -> None:
    corpus = folder.parent / "c.txt"
    words = ["--input", corpus, "--out", tmp_path / "t", "--vocab_size", 600, "--json", "--quiet"]
    run = command(capsys, "tokenizer", *words)
    assert json.loads(run.out)["vocab_size"] == 600
    assert (tmp_path / "t/tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()


def test_max_bytes_bounds_what_is_trained_on(folder: Path, tmp_path: Path, capsys: Any) -> None:
    words = ["--input", folder.parent / "c.txt", "--out", tmp_path / "t", "--vocab_size", 600]
    write_jsonl(tmp_path / "c.jsonl", 50)
    words[1] = tmp_path / "c.jsonl"
    run = command(capsys, "tokenizer", *words, "--max_bytes", 50, "--quiet", "--json")
    assert json.loads(run.out)["vocab_size"] < 600


@pytest.mark.parametrize("kind", ["byte", "bpe"])
def test_the_tokenizer_copy_is_loaded_by_all_three_libraries(
    kind: str, folder: Path, tmp_path: Path, capsys: Any
) -> None:
    transformers = pytest.importorskip("transformers")
    litgpt = pytest.importorskip("litgpt.tokenizer")
    name = "byte" if kind == "byte" else folder
    out = tmp_path / "out"
    corpus = write_jsonl(tmp_path / "c.jsonl", 50)
    build(capsys, "--input", corpus, "--out", out, "--tokenizer", name)
    text = "naïve\n\n  中文 ☃ don't"
    ours = TokenizersEncoder(load_vocabulary(str(name)), "plain").encode([text])[0].tolist()
    fast = transformers.PreTrainedTokenizerFast.from_pretrained(out / "tokenizer")
    theirs = litgpt.Tokenizer(out / "tokenizer")
    assert fast(text).input_ids == ours
    assert theirs.encode(text).tolist() == ours
    assert theirs.decode(theirs.encode(text)) == text
    eos = card_of(out).eos_id
    assert fast.eos_token_id == theirs.eos_id == eos
    assert fast(END_OF_TEXT).input_ids == [eos]
    assert card_of(out).vocab_size == len(fast)


def test_the_byte_tokenizers_ids_are_the_bytes() -> None:
    byte = load_vocabulary("byte")
    everything = "".join(map(chr, range(0x800))) + "中🏳️"
    for encoder in (ByteEncoder(), TokenizersEncoder(byte, "plain")):
        ids, lengths = encoder.encode([everything, "", "x"])
        assert bytes(ids.astype(np.uint8)) == everything.encode() + b"x"
        assert lengths.tolist() == [len(everything.encode()), 0, 1]


def test_both_encoders_give_the_same_ids_on_hard_strings(vocabulary: Vocabulary) -> None:
    pytest.importorskip("gigatoken")
    for rule in ("plain", "parse"):
        assert isinstance(checked_gigatoken(vocabulary, rule, texts(50)), FallbackEncoder)
    fast = GigatokenEncoder(vocabulary, "plain")
    assert same_ids(fast, TokenizersEncoder(vocabulary, "plain"), [*DIFFICULT_STRINGS, *texts(99)])


def test_the_output_does_not_depend_on_the_encoder(
    folder: Path, tmp_path: Path, capsys: Any
) -> None:
    pytest.importorskip("gigatoken")
    corpus = write_jsonl(tmp_path / "c.jsonl")
    hashes = []
    for encoder in ("gigatoken", "tokenizers"):
        out = tmp_path / encoder
        words = ["--tokenizer", folder, "--encoder", encoder]
        assert build(capsys, "--input", corpus, "--out", out, *words).code == 0
        card = card_of(out)
        hashes.append(card.content_hash)
        assert card.notes["encoder"]["name"] == encoder
    assert hashes[0] == hashes[1]


@pytest.mark.parametrize("encoder", ["tokenizers", "gigatoken"])
@pytest.mark.parametrize("name", ["byte", "bpe"])
def test_special_strings_in_a_text_are_text_unless_they_are_parsed(
    encoder: str, name: str, folder: Path, tmp_path: Path, capsys: Any
) -> None:
    corpus = tmp_path / "c.txt"
    corpus.write_text(f"before {END_OF_TEXT} after " * 10)
    tokenizer = "byte" if name == "byte" else folder
    for rule, ends in (("plain", 1), ("parse", 11)):
        out = tmp_path / rule
        words = ["--tokenizer", tokenizer, "--special_in_text", rule, "--encoder", encoder]
        run = build(capsys, "--input", corpus, "--out", out, *words, "--seq_len", 1)
        assert run.code == 0, run.err
        card = card_of(out)
        held = int((rows_of(out) == card.eos_id).sum())
        assert held in (ends, ends - 1)
        assert card.notes["tallies"]["special_strings"] == 10


class Wrong:
    """A fast encoder that gives other ids."""

    def __init__(self, vocabulary: Vocabulary, special: Any) -> None:
        self.exact = TokenizersEncoder(vocabulary, special)

    def encode(self, given: Any) -> Any:
        return np.zeros(len(given), np.uint32), np.ones(len(given), np.int64)


class Broken(Wrong):
    """One that raises."""

    def encode(self, given: Any) -> Any:
        raise ValueError(f"not {given}")


class Unloadable:
    """One that does not know the tokenizer."""

    def __init__(self, *_: Any) -> None:
        raise RuntimeError("unknown pre-tokenizer")


@pytest.mark.parametrize("kind", [Wrong, Broken])
def test_ids_that_differ_stop_a_part(kind: Any, vocabulary: Vocabulary) -> None:
    with pytest.raises(DataError, match=r"c\.jsonl:7: gigatoken and tokenizers give different"):
        check_part(kind(vocabulary, "plain"), "some text", "c.jsonl:7")


def test_the_fast_encoder_is_left_where_it_differs(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("gigatoken")
    monkeypatch.setattr("convert.encoding.encoder_check.FallbackEncoder", Wrong)
    choice, _ = choose_encoder("auto", vocabulary, "plain", texts(5))
    assert choice.name == "tokenizers"
    assert "gigatoken gives other ids for" in choice.reason
    with pytest.raises(ConfigError, match=r"Use --encoder auto"):
        choose_encoder("gigatoken", vocabulary, "plain", texts(5))


def test_the_fast_encoder_is_left_where_it_cannot_load(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gigatoken.gigatoken_rs", None)
    assert checked_gigatoken(vocabulary, "plain", ()) == "gigatoken is not installed"
    monkeypatch.undo()
    monkeypatch.setattr("convert.encoding.encoder_check.FallbackEncoder", Unloadable)
    fault = checked_gigatoken(vocabulary, "plain", ())
    assert fault == "gigatoken cannot load this tokenizer (unknown pre-tokenizer)"


def test_letters_that_only_one_library_knows_are_left_to_the_other(folder: Path) -> None:
    """U+16EC2 is a letter since Unicode 17: `tokenizers` joins it to a mark before it."""
    pytest.importorskip("gigatoken")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["merges"].append(['"', "ð"])
    tokenizer["model"]["vocab"]['"ð'] = len(tokenizer["model"]["vocab"])
    (folder.parent / "joined").mkdir(exist_ok=True)
    (folder.parent / "joined/tokenizer.json").write_text(json.dumps(tokenizer))
    vocabulary = load_vocabulary(str(folder.parent / "joined"))
    hard = ['plain "text"', 'say "\U00016ec2" now', "smile \U0001f600 and \U0001fae0", "中文"]
    fast = GigatokenEncoder(vocabulary, "plain")
    exact = TokenizersEncoder(vocabulary, "plain")
    assert not same_ids(fast, exact, [hard[1]])
    both = FallbackEncoder(vocabulary, "plain")
    assert same_ids(both, exact, hard * 3)
    assert both.fallback_texts == 3


def test_characters_are_not_trusted_where_they_cannot_be_tried(vocabulary: Vocabulary) -> None:
    word_piece = json.dumps({"model": {"type": "WordPiece"}}).encode()
    characters = CharacterCheck(replace(vocabulary, files={"tokenizer.json": word_piece}))
    assert not characters.needs_fallback("naïve 中文")
    assert characters.needs_fallback("smile \U0001f600")


@pytest.mark.slow
def test_all_characters_that_are_not_tried_pass_the_trial(vocabulary: Vocabulary) -> None:
    pytest.importorskip("gigatoken")
    probe = replace(
        vocabulary, files={"tokenizer.json": probe_json(vocabulary.files["tokenizer.json"])}
    )
    old = [chr(c) for c in range(0x80, LAST_CODE_POINT + 1) if not 0xD800 <= c < 0xE000]
    old = [character for character in old if unproven_characters().match(character) is None]
    assert len(old) > 100_000
    encoders = GigatokenEncoder(probe, "plain"), TokenizersEncoder(probe, "plain")
    assert same_ids(*encoders, [probe_text(character) for character in old])


def test_a_growing_word_cache_is_thrown_away(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("gigatoken")
    monkeypatch.setattr("convert.encoding.encoders.REBUILD_AFTER_BYTES", 1000)
    monkeypatch.setattr("convert.encoding.encoders.REBUILD_AT_GROWTH", -(1 << 40))
    fast = GigatokenEncoder(vocabulary, "plain")
    exact = TokenizersEncoder(vocabulary, "plain")
    for _ in range(5):
        assert same_ids(fast, exact, texts(50))
    assert fast.rebuilds >= 4


@pytest.mark.slow
def test_memory_stays_flat_over_words_that_never_repeat(vocabulary: Vocabulary) -> None:
    pytest.importorskip("gigatoken")
    from convert.encoding.encoders import resident_bytes

    fast = GigatokenEncoder(vocabulary, "plain")
    sizes = []
    for text in unlike_words(40):
        fast.encode([text])
        sizes.append(resident_bytes())
    assert fast.rebuilds >= 2
    assert max(sizes[20:]) < max(sizes[:20]) * 1.1


def unlike_words(rounds: int) -> Iterator[str]:
    chance = np.random.default_rng(0)
    for _ in range(rounds):
        words = chance.integers(97, 123, (500_000, 12), dtype=np.uint8)
        words[:, 0] = 32
        yield words.tobytes().decode()


def test_a_sentencepiece_model_becomes_a_tokenizer_json(tmp_path: Path, capsys: Any) -> None:
    spm = pytest.importorskip("sentencepiece")
    pytest.importorskip("gigatoken")
    (tmp_path / "c.txt").write_text("\n".join(texts(400)))
    spm.SentencePieceTrainer.train(
        input=str(tmp_path / "c.txt"),
        model_prefix=str(tmp_path / "tokenizer"),
        vocab_size=380,
        model_type="bpe",
        byte_fallback=True,
        minloglevel=2,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
    )
    name = tmp_path / "tokenizer.model"
    vocabulary = load_vocabulary(str(name))
    theirs = spm.SentencePieceProcessor(model_file=str(name))
    exact = TokenizersEncoder(vocabulary, "plain")
    for text in texts(50, seed=3):
        assert exact.encode([text])[0].tolist() == theirs.encode(text)
    assert vocabulary.eos_id == theirs.eos_id()
    out = tmp_path / "out"
    run = build(capsys, "--input", tmp_path / "c.txt", "--out", out, "--tokenizer", name)
    assert run.code == 0, run.err
    assert (out / "tokenizer/tokenizer.model").read_bytes() == name.read_bytes()
    name.write_bytes(b"not a model")
    with pytest.raises(ConfigError, match=r"cannot be converted to a tokenizer\.json"):
        load_vocabulary(str(name))


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("/nowhere/tokenizer.json", "no such file or directory"),
        ("org/no-such-model", "not fetched from Hugging Face"),
        ("EMPTY", "holds no tokenizer.json"),
        ("MALFORMED", "cannot be read"),
    ],
)
def test_tokenizers_that_are_not_there(
    name: str, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    if name in ("EMPTY", "MALFORMED"):
        (tmp_path / name).mkdir()
        if name == "MALFORMED":
            (tmp_path / name / "tokenizer.json").write_text("{}")
        name = str(tmp_path / name)
    with pytest.raises(ConfigError, match=found) as caught:
        load_vocabulary(name)
    assert name in str(caught.value)


def test_a_tokenizer_json_beside_its_config_gives_the_tokens(tmp_path: Path) -> None:
    for name, data in byte_tokenizer_files().items():
        (tmp_path / name).write_bytes(data)
    config = {"eos_token": {"content": END_OF_TEXT}, "tokenizer_class": "X"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    vocabulary = load_vocabulary(str(tmp_path / "tokenizer.json"), bos=END_OF_TEXT)
    assert (vocabulary.eos_id, vocabulary.bos_id) == (256, 256)
    renamed = tmp_path / "mine.json"
    renamed.write_bytes((tmp_path / "tokenizer.json").read_bytes())
    assert load_vocabulary(str(renamed)).eos_id == 256


def test_end_of_text_that_does_not_exist_is_named() -> None:
    with pytest.raises(ConfigError, match=r"--eos <end>: not a token of this tokenizer"):
        load_vocabulary("byte", eos="<end>")
    with pytest.raises(ConfigError, match=r"--bos auto: the tokenizer names no bos token"):
        load_vocabulary("byte", bos="auto")
    assert load_vocabulary("byte", eos="none").eos_id is None
