"""Authenticates users at an OpenID Connect provider, with the authorization code flow and PKCE.

A browser without a session is redirected to the provider, and returns with a code. The console exchanges the code for
an ID token, checks its signature, issuer, audience, expiration and nonce, and starts a session.
"""

import asyncio
import base64
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from joserfc import jwt
from joserfc.errors import JoseError
from markupsafe import escape
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from spark_log.console.access.access_file import Provider
from spark_log.console.access.authentication import Refused, user_with_role
from spark_log.console.access.logins import LOGIN_S_MAX, Login, Logins
from spark_log.console.access.provider import ProviderError, ProviderMetadata, fetch_json
from spark_log.console.access.roles import Role, User
from spark_log.console.access.sessions import Sessions
from spark_log.errors import InvalidConfigurationError

CALLBACK = "/oidc/callback"
_ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "EdDSA"]
_EXCHANGES_MAX = 8
"""The maximum number of codes that are exchanged at the same time. Further exchanges wait. Each exchange takes a thread
until the provider answers.
"""
_CLOCK_S_MAX = 60
"""The maximum difference between the clocks of the provider and of this host."""


class OidcAuthentication:
    """Logs users in at the provider.

    `address` is the address of the console in browsers. The provider must have `<address>/oidc/callback` as a
    registered redirect URI.
    """

    def __init__(self, provider: Provider, roles: Mapping[str, Role], sessions: Sessions, address: str) -> None:
        self.sessions: Sessions | None = sessions
        self._of_browsers = sessions
        self._provider = provider
        self._roles = roles
        self._redirect_uri = f"{address}{CALLBACK}"
        self._secure = address.startswith("https://")
        self._cookie = f"{sessions.cookie}-login"
        self._secret = _secret(provider)
        self._logins = Logins()
        self._metadata = ProviderMetadata(provider.issuer)
        self._exchanges = asyncio.Semaphore(_EXCHANGES_MAX)

    async def answer(self, request: Request) -> Response | None:
        path = request.scope["path"]
        if request.method != "GET" or path.startswith("/api/"):
            return None
        if path == CALLBACK:
            await self._metadata.load()
            login = self._finished(request)
            async with self._exchanges:
                return await run_in_threadpool(self._finish, request, login)
        if self._of_browsers.user(request) is None and "hx-request" not in request.headers:
            await self._metadata.load()
            return self._begin(request)
        return None

    async def user(self, request: Request) -> User:
        user = self._of_browsers.user(request)
        if user is None:
            raise Refused("Your session has ended: reload the page.")
        return user

    def _begin(self, request: Request) -> Response:
        """Redirect the browser to the provider. The cookie binds the login to this browser."""
        path = quote(request.scope["path"]) + (f"?{request.url.query}" if request.url.query else "")
        login = self._logins.begin(path)
        digest = hashlib.sha256(login.verifier.encode()).digest()
        query = {
            "response_type": "code",
            "client_id": self._provider.client_id,
            "redirect_uri": self._redirect_uri,
            "scope": " ".join(self._provider.scopes),
            "state": login.state,
            "nonce": login.nonce,
            "code_challenge": base64.urlsafe_b64encode(digest).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }
        endpoint = self._metadata.endpoint("authorization_endpoint")
        address = f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(query)}"
        response = RedirectResponse(address, 303)
        # SameSite=Lax, because the browser returns from another site
        response.set_cookie(
            self._cookie, self._logins.seal(login), LOGIN_S_MAX, path=CALLBACK, httponly=True, samesite="lax",
            secure=self._secure,
        )  # fmt: skip
        return response

    def _finished(self, request: Request) -> Login:
        """Return the login of a browser that returns from the provider. Raises Refused if the login has ended."""
        login = self._logins.finish(request.cookies.get(self._cookie, ""), request.query_params.get("state", ""))
        if login is None:
            raise Refused("This login has ended, or began in another browser. Open the console's address again.")
        return login

    def _finish(self, request: Request, login: Login) -> Response:
        """Start the session of a browser that returned from the provider. Raises Refused."""
        given = request.query_params
        if "code" not in given:
            raise Refused(f"The provider refused: {given.get('error', 'no code')} {given.get('error_description', '')}")
        claims = self._claims(given["code"], login)
        name = claims.get(self._provider.user_claim) or claims.get("email") or claims["sub"]
        groups = claims.get(self._provider.groups_claim, [])
        user = user_with_role(str(name), [groups] if isinstance(groups, str) else list(groups), self._roles)
        # A page, since the browser would not send the strict cookie in redirects that began at another site.
        path = escape(login.path)
        text = f'<!doctype html><html lang="en"><head><meta http-equiv="refresh" content="0;url={path}"><title>Login'
        response = Response(
            f'{text}</title></head><body><a href="{path}">Go on</a></body></html>', media_type="text/html"
        )
        self._of_browsers.begin(user, response)
        response.delete_cookie(self._cookie, path=CALLBACK, httponly=True, samesite="lax", secure=self._secure)
        return response

    def _claims(self, code: str, login: Login) -> dict[str, Any]:
        """Return the verified claims of the ID token that the provider issues for `code`. Raises Refused."""
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._redirect_uri,
            "client_id": self._provider.client_id,
            "code_verifier": login.verifier,
        }
        credentials = None if self._secret is None else (self._provider.client_id, self._secret)
        try:
            answer = fetch_json(self._metadata.endpoint("token_endpoint"), form, credentials)
            return self._checked(str(answer["id_token"]), login.nonce)
        except (ProviderError, JoseError, KeyError, ValueError) as error:
            raise Refused(f"The provider's answer is not valid: {error}") from error

    def _checked(self, token: str, nonce: str) -> dict[str, Any]:
        keys = self._metadata.keys()
        try:
            claims = jwt.decode(token, keys, algorithms=_ALGORITHMS).claims
        except (JoseError, ValueError):  # the provider may have changed its keys
            claims = jwt.decode(token, self._metadata.keys(unlike=keys), algorithms=_ALGORITHMS).claims
        jwt.JWTClaimsRegistry(
            leeway=_CLOCK_S_MAX,
            iss={"essential": True, "value": self._metadata.endpoint("issuer")},
            aud={"essential": True, "value": self._provider.client_id},
            sub={"essential": True},
            exp={"essential": True},
            nonce={"essential": True, "value": nonce},
        ).validate(claims)
        if claims.get("azp", self._provider.client_id) != self._provider.client_id:
            raise ValueError("the ID token was issued to another client")
        return dict(claims)


def _secret(provider: Provider) -> str | None:
    if provider.client_secret_file is None:
        return None
    try:
        return Path(provider.client_secret_file).read_text().strip()
    except OSError as error:
        raise InvalidConfigurationError(f"oidc.client_secret_file: {error}") from error
