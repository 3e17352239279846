"""Hide secrets in text that people read or pass on.

Any text goes in; the same text comes out without user and password in URLs, without the values in
a URL's query (signed links), and, as the caller chooses, without values that stand behind a name
such as `secret_key` and without the values of secret environment variables. No configuration is
parsed.
"""

from __future__ import annotations

import os
import re

HIDDEN = "***"

_USERINFO = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)[^/\s@]+@")
_QUERY = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://[^\s?'\"<>]*)\?[^\s'\"<>]*[^\s'\"<>)\],}]")
_PARAMETER = re.compile(r"([?&][\w.%-]+=)(?!\*\*\*)[^&\s'\"<>)\],}]+")
_NAMED = re.compile(
    r"((?:[\w.-]*[_.-])?(?:password|passwd|secret|api_?key|access_?key(?:_id)?|account_?key"
    r"|(?:secret|session|auth|sas|access|bearer)_?(?:key|token|access_key)|credentials?)"
    r"['\"]?\s*[:=]\s*)(?!null\b|None\b|~)(\"[^\"]*\"|'[^']*'|[^\s,;}\]]+)",
    re.IGNORECASE,
)
_SECRET_VARIABLES = re.compile(
    r"(SECRET|TOKEN|PASSWORD|_KEY$|ACCESS_KEY|SAS|CREDENTIAL)", re.IGNORECASE
)
_SHORTEST_SECRET = 8
"""Shorter values of variables are words that a message may hold by chance."""


def redact(text: str) -> str:
    """The text of a report, with `***` for what URLs hide and for values behind secret names."""
    text = hide_url_secrets(text)
    text = _PARAMETER.sub(rf"\g<1>{HIDDEN}", text)
    return _NAMED.sub(rf"\g<1>{HIDDEN}", text)


def redact_error(text: str) -> str:
    """The text of a client's error, without logins and queries of URLs, with `***` for the values
    of secret environment variables.
    """
    return hide_environment_secrets(hide_url_secrets(text, mark=""))


def hide_url_secrets(text: str, *, mark: str = HIDDEN) -> str:
    """Put `mark` in place of user, password and query of each URL; an empty one removes them."""
    text = _USERINFO.sub(rf"\g<1>{mark}@" if mark else r"\g<1>", text)
    return _QUERY.sub(rf"\g<1>?{mark}" if mark else r"\g<1>", text)


def hide_environment_secrets(text: str) -> str:
    """Put `***` in place of the values of environment variables that are named like secrets.

    A value that begins with "/" is the path of a file of credentials, which is no secret.
    """
    for name, value in os.environ.items():
        if (
            len(value) >= _SHORTEST_SECRET
            and value in text
            and _SECRET_VARIABLES.search(name)
            and not value.startswith("/")
        ):
            text = text.replace(value, HIDDEN)
    return text
