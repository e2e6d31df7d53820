"""Sends requests to an OpenID Connect provider, and keeps its metadata: its endpoints and its keys."""

import asyncio
import base64
import json
import threading
import time
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote_plus, urlencode
from urllib.request import Request

from joserfc.jwk import KeySet
from starlette.concurrency import run_in_threadpool

from spark_log.console.access.authentication import Refused
from spark_log.registry.bounded_requests import send, time_limit

_BYTES_MAX = 1024 * 1024
_PAUSE_S = 5.0
"""The time after a failure before the provider is asked again."""


class ProviderError(Exception):
    """The provider does not answer, or its answer is not valid."""


def fetch_json(
    url: str, form: Mapping[str, str] | None = None, credentials: tuple[str, str] | None = None
) -> dict[str, Any]:
    """Send GET, or POST if there is a `form`, and return the JSON object of the response.

    `credentials` are the client id and the client secret. Raises ProviderError.
    """
    request = Request(url, None if form is None else urlencode(form).encode())
    request.add_header("Accept", "application/json")
    if credentials is not None:
        pair = ":".join(quote_plus(each) for each in credentials)
        request.add_header("Authorization", f"Basic {base64.b64encode(pair.encode()).decode()}")
    try:
        with time_limit():
            answered = json.loads(_send(request))
    except (OSError, ValueError, HTTPException) as error:
        raise ProviderError(str(error)) from error
    if not isinstance(answered, dict):
        raise ProviderError("the answer is not a JSON object")
    return answered


def _send(request: Request) -> bytes:
    try:
        return send(request, _BYTES_MAX)
    except HTTPError as error:
        raise ProviderError(f"status {error.code}: {error.read(200)!r}") from error


class ProviderMetadata:
    """The metadata of a provider, fetched at the first request that needs them.

    One request to the provider serves all requests that wait for the endpoints. Waiting requests hold no thread.
    """

    def __init__(self, issuer: str) -> None:
        self._issuer = issuer.rstrip("/")
        self._loading = asyncio.Lock()
        self._endpoints: dict[str, Any] | None = None
        self._failure = ""
        self._failed_until = 0.0
        self._keys_lock = threading.Lock()
        self._keys: KeySet | None = None

    async def load(self) -> None:
        """Fetch the metadata if they are missing. Raises Refused with status 503 if the provider does not answer."""
        if self._endpoints is not None:
            return
        async with self._loading:
            if self._endpoints is None and time.monotonic() >= self._failed_until:
                try:
                    self._endpoints = await run_in_threadpool(self._fetched)
                except ProviderError as error:
                    self._failure, self._failed_until = str(error), time.monotonic() + _PAUSE_S
        if self._endpoints is None:
            raise Refused(f"The provider does not answer: {self._failure}", status=503)

    def endpoint(self, name: str) -> str:
        """Return a field of the loaded metadata, such as token_endpoint."""
        assert self._endpoints is not None, "load() comes first"
        return str(self._endpoints[name])

    def keys(self, unlike: KeySet | None = None) -> KeySet:
        """Return the keys of the provider. If the known ones are `unlike`, which did not fit a token, fetch them again.
        Raises ProviderError.
        """
        with self._keys_lock:
            if self._keys is None or self._keys is unlike:
                self._keys = KeySet.import_key_set(fetch_json(self.endpoint("jwks_uri")))  # type: ignore[arg-type]
            return self._keys

    def _fetched(self) -> dict[str, Any]:
        metadata = fetch_json(f"{self._issuer}/.well-known/openid-configuration")
        if str(metadata.get("issuer", "")).rstrip("/") != self._issuer:
            raise ProviderError("it names another issuer than the access file")
        missing = {"authorization_endpoint", "token_endpoint", "jwks_uri"} - metadata.keys()
        if missing:
            raise ProviderError(f"its metadata lacks {', '.join(sorted(missing))}")
        return metadata
