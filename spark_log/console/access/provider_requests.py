"""Requests to an OpenID Connect provider."""

import base64
import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote_plus, urlencode

_TIMEOUT_S = 10
_BYTES_MAX = 1024 * 1024


class ProviderError(Exception):
    """The provider does not answer, or its answer is not valid."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def fetch_json(
    url: str, form: Mapping[str, str] | None = None, credentials: tuple[str, str] | None = None
) -> dict[str, Any]:
    """Send GET, or POST if there is a `form`, and return the JSON object of the response.

    `credentials` are the client id and the client secret. Raises ProviderError.
    """
    request = urllib.request.Request(url, None if form is None else urlencode(form).encode())
    request.add_header("Accept", "application/json")
    if credentials is not None:
        pair = ":".join(quote_plus(each) for each in credentials)
        request.add_header("Authorization", f"Basic {base64.b64encode(pair.encode()).decode()}")
    try:
        with urllib.request.build_opener(_NoRedirects).open(request, timeout=_TIMEOUT_S) as answer:
            answered = json.loads(answer.read(_BYTES_MAX))
    except urllib.error.HTTPError as error:
        raise ProviderError(f"status {error.code}: {error.read(200)!r}") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise ProviderError(str(error)) from error
    if not isinstance(answered, dict):
        raise ProviderError("the answer is not a JSON object")
    return answered
