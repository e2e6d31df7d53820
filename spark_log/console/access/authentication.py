"""Defines the interface of authentication methods, and implements the one-time token that a console prints."""

import hmac
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from spark_log.console.access.roles import Role, User, role_of
from spark_log.console.access.sessions import Sessions


class Refused(Exception):
    """The request has no user who may use the console.

    `headers` are added to the response. `status` is 401, 403 if the user has no role or the request does not come from
    a trusted proxy, 429 for too many passwords, or 503 if the provider does not answer.
    """

    def __init__(self, text: str, headers: dict[str, str] | None = None, status: int = 401) -> None:
        super().__init__(text)
        self.headers, self.status = headers or {}, status


def user_with_role(name: str, groups: Sequence[str], roles: Mapping[str, Role]) -> User:
    """Return the user with the role of `groups`. Raises Refused if the user belongs to no group that has a role."""
    role = role_of(groups, roles)
    if role is None:
        raise Refused(f"User {name} belongs to no group that may use this console.", status=403)
    return User(name, role, tuple(groups))


class Authentication(Protocol):
    """One method of authentication. `sessions` is None if the browser sends credentials in each request."""

    sessions: Sessions | None

    async def answer(self, request: Request) -> Response | None:
        """Return the response to a request that belongs to the method, such as the redirect from a login page."""

    async def user(self, request: Request) -> User:
        """Return the user who sent the request. Raises Refused."""


class TokenAuthentication:
    """Logs a browser in by the token in the address that the console prints. The token works once, and starts a session
    in that browser.

    `announce` is called with the next token at the start and whenever a token was used.
    """

    def __init__(self, sessions: Sessions, role: Role, announce: Callable[[str], None]) -> None:
        self.sessions: Sessions | None = sessions
        self._of_browsers = sessions
        self._user = User("local", role)
        self._announce = announce
        self._lock = threading.Lock()
        self._token = ""
        self.renew()

    def renew(self) -> None:
        self._token = secrets.token_urlsafe(32)
        self._announce(self._token)

    async def answer(self, request: Request) -> Response | None:
        given = request.query_params.get("token")
        if request.method != "GET" or request.scope["path"] != "/" or given is None:
            return None
        with self._lock:
            if not self._token or not hmac.compare_digest(given.encode(), self._token.encode()):
                if self._of_browsers.user(request) is None:
                    raise Refused(
                        "This token was used already, or is of another console. Open the last address that the console"
                        " has printed."
                    )
                return None
            self._token = ""
        response = RedirectResponse("/", 303)
        self._of_browsers.begin(self._user, response)
        self.renew()
        return response

    async def user(self, request: Request) -> User:
        user = self._of_browsers.user(request)
        if user is None:
            raise Refused("Open the address that the console printed: it has a token, which starts a session once.")
        return user
