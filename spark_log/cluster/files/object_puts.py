"""Creates objects in S3 that must not exist yet, by conditional puts of obstore. pyarrow.fs has none."""

import importlib.util
import os
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from spark_log.errors import StorageUnavailableError, install_extra, redact

_RETRIES = 2
_TIMEOUT_S = 30
_process: int | None = None
"""The process that has used obstore, whose threads do not exist in a forked child: a call there would wait for ever."""


def can_create(uri: str) -> bool:
    """Whether `create_object` works in this log dir: it is in S3, and obstore is installed."""
    return uri.startswith("s3:") and importlib.util.find_spec("obstore") is not None


def create_object(uri: str, relative: str, data: bytes) -> bool:
    """Create an object in the log dir of this URI. Returns False if it exists. After a lost answer, the object may
    exist although this function raised StorageUnavailableError, or returned False.
    """
    global _process
    try:
        import obstore
        from obstore.exceptions import AlreadyExistsError, BaseError
    except ImportError as error:
        raise StorageUnavailableError(f"objects cannot be created in S3: {install_extra('s3')}") from error

    if _process not in (None, os.getpid()):
        raise StorageUnavailableError("objects cannot be created in a forked child of a process that has created some")
    _process = os.getpid()
    try:
        obstore.put(_store(uri), relative, data, mode="create")
    except AlreadyExistsError:
        return False
    except BaseError as error:
        reason = " ".join(str(error).split())
        raise StorageUnavailableError(redact(f"{relative} in {uri} cannot be written: {reason}")) from error
    return True


@lru_cache(maxsize=64)
def _store(uri: str) -> Any:
    from obstore.store import S3Store

    parts, options = urlsplit(uri), object_store_options(uri)
    plain_http = options.pop("aws_allow_http") == "true"
    return S3Store(
        parts.hostname or "",
        prefix=unquote(parts.path.strip("/")) or None,
        config={name.removeprefix("aws_"): value for name, value in options.items()},  # type: ignore[arg-type]
        client_options={"allow_http": plain_http, "timeout": f"{_TIMEOUT_S}s"},
        retry_config={"max_retries": _RETRIES},
    )


def object_store_options(uri: str) -> dict[str, str]:
    """Return the options of the Rust crate object_store, which deltalake and obstore use, for a URI that is written for
    pyarrow.fs.

    deltalake and obstore take settings that are not in the URI from the same AWS_... environment variables.
    """
    parts = urlsplit(uri)
    if parts.scheme != "s3":
        return {}
    query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
    # An http:// endpoint was chosen by the user, in the URI or in AWS_ENDPOINT_URL, and gets the records anyway.
    options = {"aws_allow_http": "true"}
    if parts.username:
        options["aws_access_key_id"] = unquote(parts.username)
    if parts.password:
        options["aws_secret_access_key"] = unquote(parts.password)
    if "region" in query:
        options["aws_region"] = query["region"]
    if "endpoint_override" in query:
        endpoint = query["endpoint_override"]
        scheme = query.get("scheme", "https")
        options["aws_endpoint_url"] = endpoint if "://" in endpoint else f"{scheme}://{endpoint}"
    return options
