"""Exceptions of disks and bucket clients -> one `StorageError`. In: an exception and a place. Out:
reason, clean text.

The text holds no credentials and none of the client's debug output. Does not retry or log.
"""

from __future__ import annotations

import errno
import re

from stream_pretrain.errors import StorageError
from stream_pretrain.redaction import redact_error

TRANSIENT = frozenset({"timeout", "unreachable", "damaged"})

_ERRNO = {
    errno.ENOENT: "absent",
    errno.ENOTDIR: "absent",
    errno.EACCES: "denied",
    errno.EPERM: "denied",
    errno.EROFS: "denied",
    errno.EEXIST: "conflict",
    errno.ENOSPC: "full",
    errno.EDQUOT: "full",
    errno.ETIMEDOUT: "timeout",
    errno.ECONNRESET: "unreachable",
    errno.ECONNREFUSED: "unreachable",
    errno.ESTALE: "unreachable",
}
_CLASS = {
    "NotFoundError": "absent",
    "PermissionDeniedError": "denied",
    "UnauthenticatedError": "denied",
    "AlreadyExistsError": "conflict",
    "PreconditionError": "conflict",
}
REMEDIES = {
    "absent": "Check the name and that the upload finished.",
    "denied": "Check the credentials and what they may do (storage.profile, storage.anonymous).",
    "full": "Free some space or choose another place.",
    "timeout": "Check the network; storage.timeout and storage.retries give it longer.",
    "unreachable": "Check the network, storage.endpoint_url and storage.region.",
}
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([^<]*)</Code>")
_DETAIL = re.compile(r"<Message>([^<]*)</Message>")
_EXPIRED = ("ExpiredToken", "InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken")


def storage_error(error: BaseException, place: str, doing: str = "") -> StorageError:
    """The `StorageError` that says what happened at `place`; one that is a StorageError already
    stays itself.
    """
    if isinstance(error, StorageError):
        return error
    reason, cause = explain(error)
    prefix = f"{doing}: " if doing else ""
    remedy = REMEDIES.get(reason, "")
    return StorageError(f"{place}: {prefix}{cause}. {remedy}".strip(), reason)


def explain(error: BaseException) -> tuple[str, str]:
    """Reason and cause (one line, no final full stop) of an exception of the file system or of
    obstore.
    """
    if isinstance(error, TimeoutError):
        return "timeout", redact_error(str(error)) or "timed out"
    if isinstance(error, OSError) and error.errno is not None:
        return _ERRNO.get(error.errno, "other"), error.strerror or type(error).__name__
    text = str(error)
    head = text.partition("\n\nDebug source:")[0].strip()
    if isinstance(error, FileNotFoundError):
        return "absent", _cause(head, "not found")
    named = _CLASS.get(type(error).__name__)
    if named is not None:
        return named, _cause(
            head, {"conflict": "exists already or was changed by another"}.get(named, named)
        )
    return _client_failure(text, head)


def _client_failure(text: str, head: str) -> tuple[str, str]:
    """Failures for which the client has no class: HTTP status, connection, credentials."""
    if "token request" in head or "performing GET http://169.254" in head:
        return "denied", "no credentials in the environment, and none from this machine"
    status = _STATUS.search(head)
    if status is not None:
        return _status_reason(int(status.group(1)), head), _cause(head, head)
    if "kind: Timeout" in text or "TimedOut" in text:
        return "timeout", "no data arrived in time"
    if "IncompleteBody" in text or "UnexpectedEof" in text:
        return "unreachable", "the connection ended before the whole body had arrived"
    if "ConnectionReset" in text:
        return "unreachable", "the connection was reset"
    if "kind: Connect" in text:
        return "unreachable", "cannot connect to the endpoint"
    if "kind: Interrupted" in text or "kind: Request" in text or "HTTP error" in head:
        return "unreachable", "the connection broke"
    if "redential" in head or "metadata" in head.lower():
        return "denied", f"no usable credentials ({redact_error(_short(head))})"
    return "other", redact_error(_short(head)) or "the client gave no reason"


def _status_reason(status: int, head: str) -> str:
    code = _CODE.search(head)
    name = code.group(1) if code else ""
    if name in _EXPIRED or status in (401, 403):
        return "denied"
    if name == "RequestTimeout" or status in (408, 504):
        return "timeout"
    if status in (404, 410):
        return "absent"
    if status in (409, 412):
        return "conflict"
    return "unreachable" if status == 429 or status >= 500 else "other"


def _cause(head: str, otherwise: str) -> str:
    """`HTTP 403, AccessDenied: Access Denied`, from what the client reports."""
    status, code, detail = (pattern.search(head) for pattern in (_STATUS, _CODE, _DETAIL))
    if status is None:
        return redact_error(_short(otherwise))
    parts = [f"HTTP {status.group(1)}", code.group(1) if code else ""]
    text = ", ".join(part for part in parts if part)
    return redact_error(f"{text}: {_short(detail.group(1))}" if detail else text)


def _short(text: str, limit: int = 300) -> str:
    line = " ".join(text.split()).rstrip(".")
    return line if len(line) <= limit else line[: limit - 1] + "…"
