"""Removes secrets from error messages, and tells how to install an extra."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from spark_log.errors.topics import InvalidConfigurationError

_USER_INFO = re.compile(
    r"""
    ://
    (?: (?P<user> [^\s/?#:]* ) : (?: (?!://) \S )*   # a password may have / ? # and @ that should be escaped
      | (?P<token> [^\s/?#:@]+ )
    ) @
    """,
    re.VERBOSE,
)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*$")
_SCHEME_LENGTH_MAX = 40
_SECRET_PARAMETER = re.compile(
    r"""
    ( (?: ^ | [?&;\s] )
      (?: [\w.-]{0,40} (?: passw(?:or)?d | secret | token | api[_-]?key | access[_-]?key | credential | signature )
          [\w.-]{0,40} | sig ) = )
    (?: "[^"]*" | '[^']*' | [^&;\s'"]* )
    """,
    re.VERBOSE | re.IGNORECASE,
)


def redact(text: str) -> str:
    """Return `text` with every secret in it replaced by ***, for messages, logs, reprs and Spark plans.

    Secrets are the passwords of URLs, user information of URLs that is a token (`https://TOKEN@host`), and parameters
    such as `token=`. A password ends at the last @ before a space, so that one with an unescaped / is hidden too. In
    `http://h:80/a@b`, more is hidden than necessary.
    """
    return _SECRET_PARAMETER.sub(r"\1***", _USER_INFO.sub(_without_secret, text))


def _without_secret(user_info: re.Match[str]) -> str:
    """Return the replacement of a URL's user information. A user name is kept only where it cannot be a token.

    For http and https it is replaced, because Git servers and schema registries accept tokens there.
    """
    before = _SCHEME.search(user_info.string[max(0, user_info.start() - _SCHEME_LENGTH_MAX) : user_info.start()])
    scheme = before[0].lower() if before else ""
    if scheme.startswith("postgres"):
        return user_info[0] if user_info["user"] is None else f"://{user_info['user']}:***@"
    if user_info["user"] is None or scheme in ("http", "https"):
        return "://***@"
    return f"://{user_info['user']}:***@"


def install_extra(name: str) -> str:
    """Return the end of an error message that says how to install an extra (pyproject.toml, `optional-dependencies`).

    No package index has spark-log, so another project could take the name there: the message must not suggest a
    `pip install` of the bare name.
    """
    return f"install spark-log with its extra '{name}': pip install '.[{name}]' in spark-log's repository"


@contextmanager
def needing(user: str, extra: str) -> Iterator[None]:
    """Convert the error of an import that needs a package of an extra to InvalidConfigurationError. `user` names the
    feature that needs the package. A missing module of spark-log itself is a defect, and stays an ImportError.
    """
    try:
        yield
    except ImportError as error:
        if error.name is None or error.name.startswith("spark_log"):
            raise
        state = "is not installed" if isinstance(error, ModuleNotFoundError) else f"cannot be imported: {error}"
        raise InvalidConfigurationError(
            f"{user} needs a package that {state} ({error.name}): {install_extra(extra)}"
        ) from error
