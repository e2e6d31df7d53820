"""Hashes and checks the passwords of users of the access file (scrypt).

`python -m spark_log.console.access.passwords` prints the hash of a password.
"""

import base64
import getpass
import hashlib
import hmac
import secrets
import sys

_COST, _BLOCK, _PARALLEL = 2**14, 8, 1
_MEMORY_BYTES_MAX = 64 * 1024 * 1024


def hash_password(password: str) -> str:
    """Return `scrypt:<salt>:<hash>`, with salt and hash in base64."""
    salt = secrets.token_bytes(16)
    return ":".join(("scrypt", *(base64.b64encode(part).decode() for part in (salt, _scrypt(password, salt)))))


def matches(password: str, hashed: str) -> bool:
    """Return whether `hashed` is a hash of this password. The check takes about 50 ms and 16 MiB."""
    try:
        _, salt, expected = hashed.split(":")
        return hmac.compare_digest(_scrypt(password, base64.b64decode(salt)), base64.b64decode(expected))
    except ValueError:
        return False


def _scrypt(password: str, salt: bytes) -> bytes:
    return hashlib.scrypt(
        password.encode(errors="replace"), salt=salt, n=_COST, r=_BLOCK, p=_PARALLEL, maxmem=_MEMORY_BYTES_MAX
    )


if __name__ == "__main__":
    given = getpass.getpass() if sys.stdin.isatty() else sys.stdin.readline().rstrip("\n")
    sys.stdout.write(f"{hash_password(given)}\n")
