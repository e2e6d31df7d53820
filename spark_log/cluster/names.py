"""Implements Kafka's rules for topic names (org.apache.kafka.common.internals.Topic).

legal := [a-zA-Z0-9._-]{1,249}, neither "." nor "..". Two names collide if they are equal after each `.` is replaced by
`_`: metric names cannot tell them apart. Clients can read internal topics; only the cluster writes them. The records of
`__consumer_offsets` are rows of the metadata store; the others consist of segments, as the topics of users do.
"""

import re

from spark_log.errors import InvalidTopicError, PolicyViolationError

TOPIC_NAME_LENGTH_MAX = 249

CONSUMER_OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTION_STATE_TOPIC = "__transaction_state"
METRICS_TOPIC = "__metrics"
AUDIT_TOPIC = "__audit"
INTERNAL_TOPICS = frozenset({CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, METRICS_TOPIC, AUDIT_TOPIC})

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def validate_topic_name(name: object, field: str = "topic") -> str:
    """Return `name` if it is legal. `field` names it in the error message (an option, a column, an argument).

    Raises InvalidTopicError, which names the field and the value.
    """
    if not isinstance(name, str):
        raise InvalidTopicError(f"{field} must be text, got {name!r}")
    if not name:
        raise InvalidTopicError(f"{field} is not a legal topic name: {name!r} is empty")
    if len(name) > TOPIC_NAME_LENGTH_MAX:
        raise InvalidTopicError(
            f"{field} is not a legal topic name: {name[:50]!r}… has {len(name)} characters, more than "
            f"{TOPIC_NAME_LENGTH_MAX}"
        )
    if name in (".", ".."):
        raise InvalidTopicError(f"{field} is not a legal topic name: {name!r} cannot be '.' or '..'")
    if not _LEGAL.fullmatch(name):
        raise InvalidTopicError(
            f"{field} is not a legal topic name: {name!r} has characters other than ASCII letters, digits, '.', '_' "
            "and '-'"
        )
    return name


def is_legal(name: object) -> bool:
    """Whether a topic can have this name."""
    try:
        validate_topic_name(name)
    except InvalidTopicError:
        return False
    return True


def validate_user_topic(name: object, operation: str, field: str = "topic") -> str:
    """Return `name` if it is legal and a user may do `operation` ("write to", "create", "delete") on it.

    Raises InvalidTopicError, or PolicyViolationError for an internal topic.
    """
    topic = validate_topic_name(name, field)
    if is_internal(topic):
        raise PolicyViolationError(f"Cannot {operation} {field} {topic!r}: it is internal to the cluster")
    return topic


def is_internal(topic: str) -> bool:
    """Whether only the cluster itself writes to `topic`. Patterns do not match such topics."""
    return topic in INTERNAL_TOPICS


def is_kept_by_store(topic: str) -> bool:
    """Whether the records of `topic` are rows of the metadata store: it has no replicas, segments or Delta table."""
    return topic == CONSUMER_OFFSETS_TOPIC


def collision_key(topic: str) -> str:
    """Return a key that is equal for two names exactly if they collide. The metadata store has a unique index on it."""
    return topic.replace(".", "_")
