"""What people pass on holds no secrets, and stays readable."""

from __future__ import annotations

import pytest

from stream_pretrain.redaction import hide_environment_secrets, hide_url_secrets, redact


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://user:pa55@bucket/run", "s3://***@bucket/run"),
        ("see https://tok@h/x, then go", "see https://***@h/x, then go"),
        (
            "https://h/a.bin?X-Amz-Signature=abc&X-Amz-Credential=def end",
            "https://h/a.bin?*** end",
        ),
        ("remote: 'az://c/x?sig=abc'", "remote: 'az://c/x?***'"),
        ("aws_secret_access_key: abc/def+1", "aws_secret_access_key: ***"),
        ("AWS_ACCESS_KEY_ID=AKIA123", "AWS_ACCESS_KEY_ID=***"),
        ('{"password": "a b", "x": 1}', '{"password": ***, "x": 1}'),
        ("part of a link: x?sig=abc&se=2026", "part of a link: x?sig=***&se=***"),
        ("session_token: abc", "session_token: ***"),
        ("storage.api_key=abc", "storage.api_key=***"),
    ],
)
def test_secrets_are_hidden(text: str, shown: str) -> None:
    assert redact(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "s3://bucket/run/step-00000100",
        "max_tokens: 1000",
        "tokenizer: byte",
        "text_key: content",
        "dir: /data/user@home/run",
        "secret: null",
        "what is 3 + 4? https://h/a",
        "tokens=5",
    ],
)
def test_the_rest_stays_as_it_is(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize(
    ("text", "marked", "removed"),
    [
        ("s3://k:p's@b/x", "s3://…@b/x", "s3://b/x"),
        ("(https://h/x?sig=a,b), then", "(https://h/x?…), then", "(https://h/x), then"),
        ("GET https://me:pw@h/x?sig=a", "GET https://…@h/x?…", "GET https://h/x"),
        ("what is 3 + 4? me@home", "what is 3 + 4? me@home", "what is 3 + 4? me@home"),
    ],
)
def test_the_mark_stands_for_what_a_url_hides(text: str, marked: str, removed: str) -> None:
    assert hide_url_secrets(text, mark="…") == marked
    assert hide_url_secrets(text, mark="") == removed


def test_short_values_and_paths_of_the_environment_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", "run")
    monkeypatch.setenv("B_SECRET", "/home/me/key.json")
    monkeypatch.setenv("C_SECRET", "hunter2hunter2")
    text = "run of /home/me/key.json with hunter2hunter2"
    assert hide_environment_secrets(text) == "run of /home/me/key.json with ***"
