"""A location and the `storage` section -> an obstore client.

The only place where endpoints, regions and credentials meet.

Credentials: obstore's own chain where it can see them (keys, web identity, container variables);
else boto3's, which knows profiles, SSO and instances. In: `Location`, `StorageConfig`. Out: a
client. Sends nothing itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from stream_pretrain.errors import StorageError
from stream_pretrain.storage.location import Location

if TYPE_CHECKING:
    from obstore.store import ObjectStore

    from stream_pretrain.config.sections import StorageConfig

_OBSTORE_SEES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
_ENDPOINT_VARIABLES = ("S3_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_REGION_VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION")
CREDENTIALS_LIVE = timedelta(minutes=10)


def make_client(
    place: Location, config: StorageConfig, *, retries: int, read_timeout_s: float
) -> ObjectStore:
    """A fresh client for `place.bucket`; by itself it tries each request again `retries` times."""
    try:
        options = _common(retries, read_timeout_s, allow_http=_is_plain_http(place, config))
        if place.scheme == "s3":
            return _s3(place, config, options)
        if place.scheme == "gs":
            return _gcs(place, config, options)
        return _azure(place, config, options)
    except StorageError:
        raise
    except Exception as error:
        from stream_pretrain.storage.failures import storage_error

        raise storage_error(error, place.url(), "cannot make a client") from None


def endpoint_of(place: Location, config: StorageConfig) -> str | None:
    """The endpoint in use: `storage.endpoint_url`, else for S3 the usual variables."""
    if config.endpoint_url:
        return str(config.endpoint_url)
    if place.scheme != "s3":
        return None
    return next((os.environ[name] for name in _ENDPOINT_VARIABLES if os.environ.get(name)), None)


def _is_plain_http(place: Location, config: StorageConfig) -> bool:
    return (endpoint_of(place, config) or "").startswith("http://")


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


def _s3(place: Location, config: StorageConfig, options: dict[str, Any]) -> ObjectStore:
    from obstore.store import S3Store

    region = config.region or next(
        (os.environ[n] for n in _REGION_VARIABLES if os.environ.get(n)), None
    )
    settings: dict[str, Any] = {"region": region or "us-east-1"}
    endpoint = endpoint_of(place, config)
    if endpoint:
        settings["endpoint"] = endpoint
        settings["virtual_hosted_style_request"] = False
    if config.requester_pays:
        settings["request_payer"] = True
    if config.anonymous:
        settings["skip_signature"] = True
    elif config.profile or not any(os.environ.get(name) for name in _OBSTORE_SEES):
        settings["credential_provider"], found = _boto3_credentials(place, config.profile)
        settings["region"] = region or found or "us-east-1"
    return S3Store(place.bucket, **settings, **options)


def _gcs(place: Location, config: StorageConfig, options: dict[str, Any]) -> ObjectStore:
    from obstore.store import GCSStore

    return GCSStore(place.bucket, **_settings(config, endpoint="base_url"), **options)


def _azure(place: Location, config: StorageConfig, options: dict[str, Any]) -> ObjectStore:
    from obstore.store import AzureStore

    return AzureStore(place.bucket, **_settings(config, endpoint="endpoint"), **options)


def _settings(config: StorageConfig, *, endpoint: str) -> dict[str, Any]:
    """Settings of a client that finds everything else by itself; `endpoint` is its word for it."""
    settings: dict[str, Any] = {}
    if config.endpoint_url:
        settings[endpoint] = config.endpoint_url
    if config.anonymous:
        settings["skip_signature"] = True
    return settings


def _boto3_credentials(
    place: Location, profile: str | None
) -> tuple[Callable[[], Any], str | None]:
    """A function that gives fresh keys through boto3's chain, and the region that its profile
    names.
    """
    try:
        import boto3
        import botocore.exceptions
    except ImportError:
        wanted = f"the profile {profile!r}" if profile else "credentials outside the environment"
        raise StorageError(
            f"{place.url()}: {wanted} need boto3. Run: pip install 'stream-pretrain[aws]', set "
            f"AWS_ACCESS_KEY_ID "
            "and AWS_SECRET_ACCESS_KEY, or set storage.anonymous for a public bucket.",
            "denied",
        ) from None
    try:
        session = boto3.Session(profile_name=profile)
        found = session.get_credentials()
    except botocore.exceptions.BotoCoreError as error:
        raise StorageError(f"{place.url()}: {error} (storage.profile).", "denied") from None
    if found is None:
        raise StorageError(
            f"{place.url()}: no credentials in the environment, profiles or instance. Set "
            f"AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, storage.profile, or storage.anonymous for a public bucket.",
            "denied",
        )

    def fresh() -> dict[str, Any]:
        keys = found.get_frozen_credentials()
        return {
            "access_key_id": keys.access_key,
            "secret_access_key": keys.secret_key,
            "token": keys.token,
            "expires_at": datetime.now(timezone.utc) + CREDENTIALS_LIVE,
        }

    return fresh, session.region_name
