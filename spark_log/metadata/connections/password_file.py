"""The password of PostgreSQL in a file, as secrets are mounted in containers.

libpq's own PGPASSFILE is no use there: it ignores a file that others may read, and a mounted secret belongs to root.
"""

import os
from collections.abc import Mapping
from typing import Any

import psycopg

VARIABLE = "PGPASSWORD_FILE"
_BYTES_MAX = 8192


def password_parameter(settings: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the parameter `password` with the first line of the file that PGPASSWORD_FILE names.

    Return no parameter if the variable is not set, or a password is given: in `settings`, the parameters of a
    connection, or in PGPASSWORD. The file is read for each connection, so a new password needs no restart.

    Raise psycopg.OperationalError if the file cannot be read, because it may be readable again soon.
    """
    path = environ.get(VARIABLE)
    if not path or settings.get("password") or environ.get("PGPASSWORD"):
        return {}
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read(_BYTES_MAX).splitlines()
    except (OSError, ValueError) as error:  # the content is not shown: it may be the password
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise psycopg.OperationalError(f"{VARIABLE}: the file {path} cannot be read: {reason}") from error
    return {"password": lines[0]} if lines else {}
