"""Logins in progress at an OpenID Connect provider: each is in a sealed cookie of its browser.

The console keeps nothing for a browser that only begins a login, so that no number of them can end the login of
another.
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
"""A cookie has at most 4,096 characters."""

_FINISHED_MAX = 10_000
_HEADER = {"alg": "dir", "enc": "A256GCM"}


class Login(msgspec.Struct, frozen=True):
    """`state`, `nonce`, `verifier`: secrets of this login (RFC 6749, OpenID Connect, RFC 7636). `path`: the page that
    the browser asked for. `until`: of the monotonic clock, seconds.
    """

    state: str
    nonce: str
    verifier: str
    path: str
    until: float


class Logins:
    """Seals logins with a key of this process: a restart of the console ends those in progress."""

    def __init__(self) -> None:
        self._key = OctKey.generate_key(256)
        self._lock = threading.Lock()
        self._finished: dict[str, None] = {}

    def begin(self, path: str) -> Login:
        """`path`: with its query; a long one is forgotten."""
        known = path if not path.startswith("//") and len(path) <= _PATH_CHARACTERS_MAX else "/"
        token = secrets.token_urlsafe
        return Login(token(32), token(32), token(48), known, time.monotonic() + LOGIN_S_MAX)

    def seal(self, login: Login) -> str:
        """The value of the browser's cookie."""
        return jwe.encrypt_compact(_HEADER, msgspec.json.encode(login), self._key)

    def finish(self, sealed: str, state: str) -> Login | None:
        """The login of this state, once; None if the cookie is not of this login, or too old."""
        try:
            login = msgspec.json.decode(jwe.decrypt_compact(sealed, self._key).plaintext or b"", type=Login)
        except (JoseError, ValueError):
            return None
        if not secrets.compare_digest(login.state.encode(), state.encode()) or time.monotonic() >= login.until:
            return None
        with self._lock:
            if state in self._finished:
                return None
            while len(self._finished) >= _FINISHED_MAX:  # the provider refuses a code that was used, too
                self._finished.pop(next(iter(self._finished)))
            self._finished[state] = None
        return login
