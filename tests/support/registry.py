"""Requests to a schema registry, and Confluent's clients of it."""

import json
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"


def request(method: str, url: str, body: Any = None) -> tuple[int, Any]:
    """Status and answer of a request."""
    data = None if body is None else json.dumps(body).encode()
    wanted = Request(url, data, {"Content-Type": CONTENT_TYPE, "Accept": CONTENT_TYPE}, method=method)
    try:
        with urlopen(wanted, timeout=30) as response:
            assert response.headers["Content-Type"].startswith(CONTENT_TYPE)
            text = response.read().decode()
            return response.status, text if method == "GET" and url.endswith("/schema") else json.loads(text)
    except HTTPError as error:
        assert error.headers["Content-Type"].startswith(CONTENT_TYPE)
        return error.code, json.loads(error.read())
