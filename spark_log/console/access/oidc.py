"""Authentication by an OpenID Connect provider: the authorization code flow with PKCE.

A browser without a session is sent to the provider, and returns with a code. The console exchanges the code for an ID
token, checks its signature, issuer, audience, time and nonce, and starts a session.
"""

import base64
import hashlib
import hmac
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet
from markupsafe import escape
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from spark_log.console.access.access_file import Provider
from spark_log.console.access.authentication import Refused, user_with_role
from spark_log.console.access.provider_requests import ProviderError, fetch_json
from spark_log.console.access.roles import Role, User
from spark_log.console.access.sessions import Sessions
from spark_log.errors import InvalidConfigurationError

CALLBACK = "/oidc/callback"
_ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "EdDSA"]
_LOGIN_S_MAX = 600
_LOGINS_MAX = 1_000
_CLOCK_S_MAX = 60
"""How much the clocks of the provider and of this host may differ."""


@dataclass(frozen=True)
class _Login:
    """A login under way. `path`: the page that the browser asked for."""

    nonce: str
    verifier: str
    path: str
    until: float


class OidcAuthentication:
    """`address`: of the console in browsers; the provider must know `<address>/oidc/callback` as redirect URI."""

    def __init__(self, provider: Provider, roles: Mapping[str, Role], sessions: Sessions, address: str) -> None:
        self.sessions: Sessions | None = sessions
        self._of_browsers = sessions
        self._provider = provider
        self._roles = roles
        self._redirect_uri = f"{address}{CALLBACK}"
        self._secure = address.startswith("https://")
        self._cookie = f"{sessions.cookie}-login"
        self._secret = _secret(provider)
        self._lock = threading.Lock()
        self._logins: dict[str, _Login] = {}
        self._metadata: dict[str, Any] | None = None
        self._keys: KeySet | None = None

    async def answer(self, request: Request) -> Response | None:
        path = request.scope["path"]
        if request.method != "GET" or path.startswith("/api/"):
            return None
        if path == CALLBACK:
            return await run_in_threadpool(self._finish, request)
        if self._of_browsers.user(request) is None and "hx-request" not in request.headers:
            return await run_in_threadpool(self._begin, request)
        return None

    async def user(self, request: Request) -> User:
        user = self._of_browsers.user(request)
        if user is None:
            raise Refused("Your session has ended: load the page anew.")
        return user

    def _begin(self, request: Request) -> Response:
        """Send the browser to the provider. The cookie ties the login to this browser."""
        state = secrets.token_urlsafe(32)
        path = quote(request.scope["path"]) + (f"?{request.url.query}" if request.url.query else "")
        login = _Login(
            secrets.token_urlsafe(32),
            secrets.token_urlsafe(48),
            "/" if path.startswith("//") else path,
            time.monotonic() + _LOGIN_S_MAX,
        )
        digest = hashlib.sha256(login.verifier.encode()).digest()
        query = {
            "response_type": "code",
            "client_id": self._provider.client_id,
            "redirect_uri": self._redirect_uri,
            "scope": " ".join(self._provider.scopes),
            "state": state,
            "nonce": login.nonce,
            "code_challenge": base64.urlsafe_b64encode(digest).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }
        endpoint = self._endpoints()["authorization_endpoint"]
        address = f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(query)}"
        with self._lock:
            self._logins = {key: each for key, each in self._logins.items() if time.monotonic() < each.until}
            while len(self._logins) >= _LOGINS_MAX:
                self._logins.pop(next(iter(self._logins)))
            self._logins[state] = login
        response = RedirectResponse(address, 303)
        # Lax: the browser returns from another site
        response.set_cookie(
            self._cookie, state, _LOGIN_S_MAX, path=CALLBACK, httponly=True, samesite="lax", secure=self._secure
        )
        return response

    def _finish(self, request: Request) -> Response:
        """Start the session of a browser that returned from the provider."""
        given = request.query_params
        state = given.get("state", "")
        with self._lock:
            login = self._logins.pop(state, None)
        of_browser = request.cookies.get(self._cookie, "")
        if login is None or not hmac.compare_digest(state.encode(), of_browser.encode()):
            raise Refused("This login has ended, or began in another browser. Open the console's address again.")
        if "code" not in given:
            raise Refused(f"The provider refused: {given.get('error', 'no code')} {given.get('error_description', '')}")
        claims = self._claims(given["code"], login)
        name = claims.get(self._provider.user_claim) or claims.get("email") or claims["sub"]
        groups = claims.get(self._provider.groups_claim, [])
        user = user_with_role(str(name), [groups] if isinstance(groups, str) else list(groups), self._roles)
        # Not a redirect: the browser would not send the strict cookie in a chain that began at another site.
        path = escape(login.path)
        text = f'<!doctype html><html lang="en"><head><meta http-equiv="refresh" content="0;url={path}"><title>Login'
        response = Response(
            f'{text}</title></head><body><a href="{path}">Go on</a></body></html>', media_type="text/html"
        )
        self._of_browsers.begin(user, response)
        response.delete_cookie(self._cookie, path=CALLBACK, httponly=True, samesite="lax", secure=self._secure)
        return response

    def _claims(self, code: str, login: _Login) -> dict[str, Any]:
        """The checked claims of the ID token that the provider gives for `code`."""
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._redirect_uri,
            "client_id": self._provider.client_id,
            "code_verifier": login.verifier,
        }
        credentials = None if self._secret is None else (self._provider.client_id, self._secret)
        try:
            answer = fetch_json(self._endpoints()["token_endpoint"], form, credentials)
            return self._checked(str(answer["id_token"]), login.nonce)
        except (ProviderError, JoseError, KeyError, ValueError) as error:
            raise Refused(f"The provider's answer is not valid: {error}") from error

    def _checked(self, token: str, nonce: str) -> dict[str, Any]:
        keys = self._keys or self._fetch_keys()
        try:
            claims = jwt.decode(token, keys, algorithms=_ALGORITHMS).claims
        except (JoseError, ValueError):  # the provider may have changed its keys
            claims = jwt.decode(token, self._fetch_keys(), algorithms=_ALGORITHMS).claims
        jwt.JWTClaimsRegistry(
            leeway=_CLOCK_S_MAX,
            iss={"essential": True, "value": self._endpoints()["issuer"]},
            aud={"essential": True, "value": self._provider.client_id},
            sub={"essential": True},
            exp={"essential": True},
            nonce={"essential": True, "value": nonce},
        ).validate(claims)
        if claims.get("azp", self._provider.client_id) != self._provider.client_id:
            raise ValueError("the ID token was issued to another client")
        return dict(claims)

    def _endpoints(self) -> dict[str, Any]:
        if self._metadata is None:
            issuer = self._provider.issuer.rstrip("/")
            try:
                found = fetch_json(f"{issuer}/.well-known/openid-configuration")
            except ProviderError as error:
                raise Refused(f"The provider does not answer: {error}", status=503) from error
            if str(found.get("issuer", "")).rstrip("/") != issuer:
                raise Refused("The provider names another issuer than the access file.", status=503)
            self._metadata = found
        return self._metadata

    def _fetch_keys(self) -> KeySet:
        self._keys = KeySet.import_key_set(fetch_json(self._endpoints()["jwks_uri"]))  # type: ignore[arg-type]
        return self._keys


def _secret(provider: Provider) -> str | None:
    if provider.client_secret_file is None:
        return None
    try:
        return Path(provider.client_secret_file).read_text().strip()
    except OSError as error:
        raise InvalidConfigurationError(f"oidc.client_secret_file: {error}") from error
