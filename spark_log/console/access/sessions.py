"""Keeps the sessions of authenticated users in memory, so that a restart of the console ends them."""

import secrets
import threading
import time
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from spark_log.console.access.roles import User

SESSION_S_MAX = 12 * 3600
_SESSIONS_MAX = 10_000
_OF_ONE_USER_MAX = 100


@dataclass(frozen=True)
class _Session:
    user: User
    until: float


class Sessions:
    """Finds users by the secret in their cookie.

    `cookie` is the name of the cookie, with the port in it, because browsers send a cookie to all ports of a host.
    """

    def __init__(self, port: int, secure: bool) -> None:
        self.cookie = f"spark-log-console-{port}"
        self._secure = secure
        self._lock = threading.Lock()
        self._sessions: dict[str, _Session] = {}

    def user(self, request: Request) -> User | None:
        with self._lock:
            session = self._sessions.get(request.cookies.get(self.cookie, ""))
            return session.user if session is not None and time.monotonic() < session.until else None

    def begin(self, user: User, response: Response) -> None:
        """Start a session, and set its secret as a cookie of the browser."""
        secret = secrets.token_urlsafe(32)
        now = time.monotonic()
        with self._lock:
            self._sessions = {key: each for key, each in self._sessions.items() if now < each.until}
            own = [key for key, each in self._sessions.items() if each.user.name == user.name]
            if len(own) >= _OF_ONE_USER_MAX:  # many logins of a user must not end the sessions of others
                self._sessions.pop(own[0])
            while len(self._sessions) >= _SESSIONS_MAX:
                self._sessions.pop(next(iter(self._sessions)))
            self._sessions[secret] = _Session(user, now + SESSION_S_MAX)
        response.set_cookie(self.cookie, secret, SESSION_S_MAX, httponly=True, samesite="strict", secure=self._secure)

    def end(self, request: Request, response: Response) -> None:
        with self._lock:
            self._sessions.pop(request.cookies.get(self.cookie, ""), None)
        response.delete_cookie(self.cookie, httponly=True, samesite="strict", secure=self._secure)
