"""Keeps each login in progress at an OpenID Connect provider in an encrypted cookie of its browser.

The console stores nothing for a browser that only begins a login. Therefore no number of new logins can end the login
of another browser.
"""

import secrets
import threading
import time

import msgspec
from joserfc import jwe
from joserfc.errors import JoseError
from joserfc.jwk import OctKey

LOGIN_S_MAX = 600

_PATH_CHARACTERS_MAX = 1_500
"""The maximum length of a path that a login keeps. A cookie has at most 4,096 characters."""

_FINISHED_MAX = 10_000
_HEADER = {"alg": "dir", "enc": "A256GCM"}


class Login(msgspec.Struct, frozen=True):
    """A login in progress.

    `state` (RFC 6749), `nonce` (OpenID Connect) and `verifier` (RFC 7636) are the secrets of this login. `path` is the
    page that the browser requested. `until` is the end of the login in seconds of the monotonic clock.
    """

    state: str
    nonce: str
    verifier: str
    path: str
    until: float


class Logins:
    """Encrypts logins with a key of this process. A restart of the console therefore ends the logins in progress."""

    def __init__(self) -> None:
        self._key = OctKey.generate_key(256)
        self._lock = threading.Lock()
        self._finished: dict[str, None] = {}

    def begin(self, path: str) -> Login:
        """Return a new login. `path` includes the query. The page `/` replaces a path that is too long or begins with
        `//`.
        """
        known = path if not path.startswith("//") and len(path) <= _PATH_CHARACTERS_MAX else "/"
        token = secrets.token_urlsafe
        return Login(token(32), token(32), token(48), known, time.monotonic() + LOGIN_S_MAX)

    def seal(self, login: Login) -> str:
        """Return the encrypted login, which is the value of the browser's cookie."""
        return jwe.encrypt_compact(_HEADER, msgspec.json.encode(login), self._key)

    def finish(self, sealed: str, state: str) -> Login | None:
        """Return the login of this state, only once, or None if the cookie belongs to another login or the login is too
        old.
        """
        try:
            login = msgspec.json.decode(jwe.decrypt_compact(sealed, self._key).plaintext or b"", type=Login)
        except (JoseError, ValueError):
            return None
        if not secrets.compare_digest(login.state.encode(), state.encode()) or time.monotonic() >= login.until:
            return None
        with self._lock:
            if state in self._finished:
                return None
            while len(self._finished) >= _FINISHED_MAX:  # the provider also refuses a code that was used
                self._finished.pop(next(iter(self._finished)))
            self._finished[state] = None
        return login
