"""Make an obstore client from a `Location` and the `storage` section.

This is the only module that handles endpoints, regions and credentials. Credentials come from
obstore's own chain where it can see them (keys, web identity, container variables), else from
boto3's, which knows profiles, SSO and instance roles. Making a client sends no request.

A client never crosses a fork: obstore's threads do not exist in a forked child, which would crash
or hang, so such a child gets an error instead (`docs/libraries.md`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from stream_pretrain.errors import StorageError
from stream_pretrain.storage.location import Location

if TYPE_CHECKING:
    from obstore.store import ObjectStore

    from stream_pretrain.config.sections import StorageConfig

_OBSTORE_VARIABLES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
_ENDPOINT_VARIABLES = ("S3_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_REGION_VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION")
CREDENTIALS_LIFETIME = timedelta(minutes=10)


_used_by_pid: int | None = None


class Clients:
    """This process's clients for one location, made on first use."""

    def __init__(self, location: Location, config: StorageConfig) -> None:
        self._location = location
        self._config = config
        self._clients: dict[tuple[int, float], ObjectStore] = {}
        self._lock = threading.Lock()

    def get(self, *, retries: int = 0, read_timeout_s: float | None = None) -> ObjectStore:
        """Return the client with these settings.

        Raises:
            StorageError: the client cannot be made, or this process was forked from one that had
                already used a bucket.
        """
        _refuse_after_fork(self._location.url())
        timeout_s = read_timeout_s or self._config.timeout
        with self._lock:
            client = self._clients.get((retries, timeout_s))
            if client is None:
                client = _make_client(
                    self._location, self._config, retries=retries, read_timeout_s=timeout_s
                )
                self._clients[retries, timeout_s] = client
            return client


def _refuse_after_fork(location: str) -> None:
    """Raise in a process forked from one that had already used a bucket."""
    global _used_by_pid
    if _used_by_pid is None:
        _used_by_pid = os.getpid()
    elif _used_by_pid != os.getpid():
        raise StorageError(
            f"{location}: this process was forked from one that already used a bucket, and its "
            "client does not survive a fork. Start the process with multiprocessing's "
            "'forkserver' or 'spawn'."
        )


def _make_client(
    location: Location, config: StorageConfig, *, retries: int, read_timeout_s: float
) -> ObjectStore:
    """Return a new client for `location.bucket`, which itself retries a request `retries` times."""
    try:
        options = _common(retries, read_timeout_s, allow_http=_is_plain_http(location, config))
        if location.scheme == "s3":
            return _s3(location, config, options)
        if location.scheme == "gs":
            return _gcs(location, config, options)
        return _azure(location, config, options)
    except StorageError:
        raise
    except Exception as error:
        from stream_pretrain.storage.failures import storage_error

        raise storage_error(error, location.url(), "cannot make a client") from None


def endpoint_of(location: Location, config: StorageConfig) -> str | None:
    """Return the endpoint in use: `storage.endpoint_url`, else for S3 the usual variables."""
    if config.endpoint_url:
        return str(config.endpoint_url)
    if location.scheme != "s3":
        return None
    return next((os.environ[name] for name in _ENDPOINT_VARIABLES if os.environ.get(name)), None)


def _is_plain_http(location: Location, config: StorageConfig) -> bool:
    return (endpoint_of(location, config) or "").startswith("http://")


def _common(retries: int, read_timeout_s: float, *, allow_http: bool) -> dict[str, Any]:
    return {
        "client_options": {
            "allow_http": allow_http,
            "connect_timeout": timedelta(seconds=min(read_timeout_s, 10.0)),
            "read_timeout": timedelta(seconds=read_timeout_s),
            "timeout": timedelta(days=1),
        },
        "retry_config": {
            "max_retries": retries,
            "retry_timeout": timedelta(minutes=4),
            "backoff": {
                "init_backoff": timedelta(milliseconds=200),
                "max_backoff": timedelta(seconds=15),
                "base": 2,
            },
        },
    }


def _s3(location: Location, config: StorageConfig, options: dict[str, Any]) -> ObjectStore:
    from obstore.store import S3Store

    region = config.region or next(
        (os.environ[n] for n in _REGION_VARIABLES if os.environ.get(n)), None
    )
    settings: dict[str, Any] = {"region": region or "us-east-1"}
    endpoint = endpoint_of(location, config)
    if endpoint:
        settings["endpoint"] = endpoint
        settings["virtual_hosted_style_request"] = False
    if config.requester_pays:
        settings["request_payer"] = True
    if config.anonymous:
        settings["skip_signature"] = True
    elif config.profile or not any(os.environ.get(name) for name in _OBSTORE_VARIABLES):
        settings["credential_provider"], profile_region = _boto3_credentials(
            location, config.profile
        )
        settings["region"] = region or profile_region or "us-east-1"
    return S3Store(location.bucket, **settings, **options)


def _gcs(location: Location, config: StorageConfig, options: dict[str, Any]) -> ObjectStore:
    from obstore.store import GCSStore

    return GCSStore(location.bucket, **_settings(config, endpoint="base_url"), **options)


def _azure(location: Location, config: StorageConfig, options: dict[str, Any]) -> ObjectStore:
    from obstore.store import AzureStore

    return AzureStore(location.bucket, **_settings(config, endpoint="endpoint"), **options)


def _settings(config: StorageConfig, *, endpoint: str) -> dict[str, Any]:
    """Return the settings of a GCS or Azure client; `endpoint` is its name for the endpoint."""
    settings: dict[str, Any] = {}
    if config.endpoint_url:
        settings[endpoint] = config.endpoint_url
    if config.anonymous:
        settings["skip_signature"] = True
    return settings


def _boto3_credentials(
    location: Location, profile: str | None
) -> tuple[Callable[[], Any], str | None]:
    """Return a function that gets fresh keys through boto3's chain, and the profile's region."""
    try:
        import boto3
        import botocore.exceptions
    except ImportError:
        needed = f"the profile {profile!r}" if profile else "credentials outside the environment"
        raise StorageError(
            f"{location.url()}: {needed} need boto3. Run: pip install 'stream-pretrain[aws]', set "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or set storage.anonymous for a public "
            "bucket.",
            "denied",
        ) from None
    try:
        session = boto3.Session(profile_name=profile)
        credentials = session.get_credentials()
    except botocore.exceptions.BotoCoreError as error:
        raise StorageError(f"{location.url()}: {error} (storage.profile).", "denied") from None
    if credentials is None:
        raise StorageError(
            f"{location.url()}: no credentials in the environment, profiles or instance. Set "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, storage.profile, or storage.anonymous "
            "for a public bucket.",
            "denied",
        )

    def fresh() -> dict[str, Any]:
        keys = credentials.get_frozen_credentials()
        return {
            "access_key_id": keys.access_key,
            "secret_access_key": keys.secret_key,
            "token": keys.token,
            "expires_at": datetime.now(timezone.utc) + CREDENTIALS_LIFETIME,
        }

    return fresh, session.region_name
