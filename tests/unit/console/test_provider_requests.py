"""Requests to an OpenID Connect provider that does not answer as it should."""

import pytest

from spark_log.console.access.provider import ProviderError, fetch_json
from spark_log.registry import bounded_requests
from tests.support.server_processes import endless_answer


@pytest.mark.parametrize(
    "start",
    [b"HTTP/1.0 200 OK\r\nX-Name: ", b"HTTP/1.0 200 OK\r\n\r\n[", b"HTTP/1.0 400 No\r\n\r\n"],
    ids=["headers", "body", "error"],
)
@pytest.mark.parametrize("form", [None, {"code": "c"}], ids=["GET", "POST"])
def test_a_provider_that_never_ends_its_answer_is_given_up(
    monkeypatch: pytest.MonkeyPatch, start: bytes, form: dict[str, str] | None
) -> None:
    monkeypatch.setattr(bounded_requests, "TOGETHER_S_MAX", 0.5)
    with endless_answer(start) as url, pytest.raises(ProviderError, match=r"timed out|no complete answer"):
        fetch_json(f"{url}/token", form)
