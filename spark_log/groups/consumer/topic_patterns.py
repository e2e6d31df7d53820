"""Matches subscriptions by a regular expression in RE2's syntax, like Kafka's brokers (KIP-848).

Matching may take seconds: clients choose the expression, and the names of all topics are matched. So it runs before the
transaction of a heartbeat, for which other writers wait.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from spark_log.cluster.names import is_internal
from spark_log.errors import InvalidRegularExpressionError
from spark_log.groups.consumer import rows
from spark_log.groups.consumer.stored_values import TopicSet
from spark_log.metadata.store import Store
from spark_log.remembered import Remembered

_PATTERN_BYTES_MAX = 1 << 20
"""The maximum memory of a compiled expression, in bytes."""
_REMEMBERED_CHARACTERS_MAX = 2_000_000


@dataclass(frozen=True)
class TopicMatches:
    """The topics that a regular expression matches, of those that existed at one time."""

    regex: str
    topic_set: TopicSet
    names: frozenset[str]


def check_pattern(regex: str) -> None:
    """Raise InvalidRegularExpressionError if the expression is not valid."""
    compile_pattern(regex, "SubscribedTopicRegex")


def match_topics(store: Store, regex: str, may_describe: Callable[[str], bool], timeout_ms: int) -> TopicMatches:
    """Return the topics whose whole name matches, without internal ones and those that the client may not see. Names
    are read for at most `timeout_ms`.
    """

    def read(connection: sa.Connection) -> tuple[TopicSet, frozenset[str]]:
        return rows.all_topics(connection), frozenset(rows.topic_names(connection))

    topic_set, names = store.read(read, timeout_ms=timeout_ms)
    return TopicMatches(regex, topic_set, frozenset(filter(may_describe, _matching(regex, names))))


def _match(regex: str, names: frozenset[str]) -> frozenset[str]:
    compiled = compile_pattern(regex, "SubscribedTopicRegex")
    return frozenset(name for name in names if not is_internal(name) and compiled.fullmatch(name))


_matching = Remembered(_match, lambda _value, _regex, names: sum(map(len, names)), _REMEMBERED_CHARACTERS_MAX)
"""Caches results, because members of a group have the same expression."""


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
