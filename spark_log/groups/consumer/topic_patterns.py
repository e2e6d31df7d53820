"""Matches subscriptions by a regular expression in RE2's syntax, like Kafka's brokers (KIP-848)."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from spark_log.cluster.names import is_internal
from spark_log.errors import InvalidRegularExpressionError

_PATTERN_BYTES_MAX = 1 << 20
"""The maximum memory of a compiled expression, in bytes."""


def check_pattern(regex: str) -> None:
    """Raise InvalidRegularExpressionError if the expression is not valid."""
    compile_pattern(regex, "SubscribedTopicRegex")


def matching(regex: str, names: Iterable[str]) -> frozenset[str]:
    """Return the topics whose whole name matches, without internal ones."""
    compiled = compile_pattern(regex, "SubscribedTopicRegex")
    return frozenset(name for name in names if not is_internal(name) and compiled.fullmatch(name))


@lru_cache(maxsize=256)
def compile_pattern(regex: str, field: str) -> Any:
    """Return the expression that a request has in this field. Raises InvalidRegularExpressionError."""
    import re2

    options = re2.Options()
    options.max_mem = _PATTERN_BYTES_MAX
    options.log_errors = False
    try:
        return re2.compile(regex, options)
    except re2.error as error:
        shown = error.args[0] if error.args else error
        shown = shown.decode() if isinstance(shown, bytes) else shown
        raise InvalidRegularExpressionError(
            f"{field} `{regex[:200]}` is not a valid regular expression: {shown}."
        ) from None
