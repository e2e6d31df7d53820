"""Requests to an OpenID Connect provider."""

import base64
import json
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote_plus, urlencode
from urllib.request import Request

from spark_log.registry.bounded_requests import send, time_limit

_BYTES_MAX = 1024 * 1024


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
