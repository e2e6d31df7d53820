"""An OpenID Connect provider on loopback: discovery, keys, and the authorization code flow with PKCE.

It logs everybody in as `claims` at once, without a page. It refuses what a provider must refuse: another client,
secret, redirect URI, or verifier, and a code that was used.
"""

import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote_plus, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import RSAKey

from tests.support.waiting import LIMIT_S

CLIENT_ID, CLIENT_SECRET = "the console", "s:e/cret"


class OidcProvider(ThreadingHTTPServer):
    """`claims`: of the next ID tokens, over the right ones. `key`: signs them; another one is a changed key.

    `asked` is set by the first request for metadata, which is answered once `may_answer` is set.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.issuer = f"http://127.0.0.1:{self.server_address[1]}/realm"
        self.claims: dict[str, Any] = {"preferred_username": "ann", "groups": ["viewers"]}
        self.key = new_key()
        self.published = self.key
        self.codes: dict[str, dict[str, str]] = {}
        self.metadata_requests = 0
        self.asked, self.may_answer = threading.Event(), threading.Event()
        self.may_answer.set()

    def rotate_keys(self) -> None:
        self.key = self.published = new_key()

    def id_token(self, asked: dict[str, str]) -> str:
        now = int(time.time())
        claims = {
            "iss": self.issuer, "aud": CLIENT_ID, "sub": "1", "iat": now, "exp": now + 300, "nonce": asked["nonce"],
            **self.claims,
        }  # fmt: skip
        return jwt.encode({"alg": "RS256", "kid": self.key.kid}, claims, self.key)


def new_key() -> RSAKey:
    return RSAKey.generate_key(2048, {"kid": secrets.token_hex(4), "use": "sig"})


class _Handler(BaseHTTPRequestHandler):
    server: OidcProvider

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        issuer = self.server.issuer
        if url.path == "/realm/.well-known/openid-configuration":
            self.server.metadata_requests += 1
            self.server.asked.set()
            assert self.server.may_answer.wait(LIMIT_S)
            names = {"authorization_endpoint": "authorize", "token_endpoint": "token", "jwks_uri": "keys"}
            self._answer(200, {"issuer": issuer} | {name: f"{issuer}/{path}" for name, path in names.items()})
        elif url.path == "/realm/keys":
            self._answer(200, {"keys": [self.server.published.as_dict(private=False)]})
        elif url.path == "/realm/authorize":
            asked = {name: values[0] for name, values in parse_qs(url.query, strict_parsing=True).items()}
            assert asked["client_id"] == CLIENT_ID and asked["code_challenge_method"] == "S256", asked
            assert "openid" in asked["scope"].split(), asked
            code = secrets.token_hex(16)
            self.server.codes[code] = asked
            self.send_response(302)
            self.send_header(
                "Location", f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state']})}"
            )
            self.end_headers()
        else:
            self._answer(404, {})

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers["Content-Length"])).decode()
        form = {name: values[0] for name, values in parse_qs(text, strict_parsing=True).items()}
        asked = self.server.codes.pop(form["code"], None)
        basic = base64.b64decode(self.headers["Authorization"].removeprefix("Basic ")).decode()
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        right = (
            asked is not None
            and [unquote_plus(part) for part in basic.split(":")] == [CLIENT_ID, CLIENT_SECRET]
            and form["redirect_uri"] == asked["redirect_uri"]
            and challenge == asked["code_challenge"]
        )
        if asked is None or not right:
            self._answer(400, {"error": "invalid_grant"})
        else:
            self._answer(200, {"token_type": "Bearer", "access_token": "-", "id_token": self.server.id_token(asked)})

    def _answer(self, status: int, facts: dict[str, Any]) -> None:
        body = json.dumps(facts).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not logged."""


@contextmanager
def running_provider() -> Iterator[OidcProvider]:
    provider = OidcProvider()
    thread = threading.Thread(target=provider.serve_forever, daemon=True)
    thread.start()
    try:
        yield provider
    finally:
        provider.shutdown()
        provider.server_close()
        thread.join()
