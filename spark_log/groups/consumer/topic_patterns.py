"""Regular expressions of requests, in RE2's syntax, like those of Kafka's brokers (KIP-848, KIP-1152)."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from spark_log.cluster.names import is_internal
from spark_log.errors import InvalidRegularExpressionError

_PATTERN_BYTES_MAX = 1 << 20
"""The maximum memory of a compiled expression, in bytes."""


def check_pattern(regex: str) -> None:
    """Raise InvalidRegularExpressionError if the expression is not valid."""
    _compiled(regex, "SubscribedTopicRegex")


def matching(regex: str, names: Iterable[str]) -> frozenset[str]:
    """Return the topics whose whole name matches, without internal ones."""
    compiled = _compiled(regex, "SubscribedTopicRegex")
    return frozenset(name for name in names if not is_internal(name) and compiled.fullmatch(name))


def matching_ids(regex: str, transactional_ids: Iterable[str]) -> frozenset[str]:
    """Return the transactional ids that match as a whole, or all for an empty expression."""
    if not regex:
        return frozenset(transactional_ids)
    compiled = _compiled(regex, "TransactionalIdPattern")
    return frozenset(each for each in transactional_ids if compiled.fullmatch(each))


@lru_cache(maxsize=256)
def _compiled(regex: str, field: str) -> Any:
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
