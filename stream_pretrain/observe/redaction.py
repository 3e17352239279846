"""Text -> the same text without secrets, for what people pass on. In: any text. Out: text. Does not
parse configuration.

Removed: user and password in a URL, every value in a URL's query (signed links), also in a part of
one, and what stands behind a name such as `secret_key` or `password`.
"""

from __future__ import annotations

import re

HIDDEN = "***"

_USERINFO = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)[^/\s@'\"<>]+@")
_QUERY = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://[^\s?'\"<>]*\?)[^\s'\"<>)\],}]+")
_PARAMETER = re.compile(r"([?&][\w.%-]+=)(?!\*\*\*)[^&\s'\"<>)\],}]+")
_NAMED = re.compile(
    r"((?:[\w.-]*[_.-])?(?:password|passwd|secret|api_?key|access_?key(?:_id)?|account_?key"
    r"|(?:secret|session|auth|sas|access|bearer)_?(?:key|token|access_key)|credentials?)"
    r"['\"]?\s*[:=]\s*)(?!null\b|None\b|~)(\"[^\"]*\"|'[^']*'|[^\s,;}\]]+)",
    re.IGNORECASE,
)


def redact(text: str) -> str:
    """The text with `***` in place of each secret found."""
    text = _USERINFO.sub(rf"\g<1>{HIDDEN}@", text)
    text = _QUERY.sub(rf"\g<1>{HIDDEN}", text)
    text = _PARAMETER.sub(rf"\g<1>{HIDDEN}", text)
    return _NAMED.sub(rf"\g<1>{HIDDEN}", text)
