"""The topic-partitions that a query reads: the options subscribe, subscribePattern and assign as a sum type."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from spark_log.cluster.names import is_internal, validate_topic_name
from spark_log.errors import InvalidOptionError
from spark_log.ids import TopicPartition
from spark_log.spark.datasource.options.offset_json import parse_assign
from spark_log.spark.datasource.options.option_text import OptionText

_STRATEGY_OPTIONS = ("subscribe", "subscribepattern", "assign")
_WRITTEN_TOPIC = (
    " Option 'topic' is for writes. A view for INSERT names its columns: CREATE TEMPORARY VIEW … (key STRING, value"
    " STRING) USING spark_log OPTIONS (…)"
)


@dataclass(frozen=True)
class SubscribeTopics:
    """Topics by name, without duplicates, in the given order. A topic that does not exist is an error."""

    topics: tuple[str, ...]


@dataclass(frozen=True)
class SubscribePattern:
    """Every topic whose name contains a match of the regular expression. If there is none, 0 rows are read."""

    pattern: str

    def select(self, topics: Iterable[str]) -> list[str]:
        """Return the matching ones of `topics`, sorted. Internal topics never match, as in Kafka's consumer."""
        found = re.compile(self.pattern).search
        return sorted(topic for topic in topics if not is_internal(topic) and found(topic))


@dataclass(frozen=True)
class AssignPartitions:
    """Single partitions, sorted. Those that do not exist are ignored."""

    partitions: tuple[TopicPartition, ...]


Subscription = SubscribeTopics | SubscribePattern | AssignPartitions


def only_topic(subscription: Subscription) -> str:
    """Return the only topic of a subscription. Record columns need exactly one: otherwise raises InvalidOptionError."""
    match subscription:
        case SubscribeTopics(names):
            topics = set(names)
        case AssignPartitions(partitions):
            topics = {partition.topic for partition in partitions}
        case _:
            topics = set()
    if len(topics) != 1:
        raise InvalidOptionError("Option 'columns' names 'record': then 'subscribe' or 'assign' has to name one topic")
    return topics.pop()


def parse_subscription(given: OptionText) -> Subscription:
    """Parse and check exactly one of the three options. Raises InvalidOptionError or InvalidTopicError."""
    texts = {name: text for name in _STRATEGY_OPTIONS if (text := given.text(name)) is not None}
    if len(texts) != 1:
        which = "Only one of the following options can" if texts else "One of the following options must"
        hint = "" if texts or given.text("topic") is None else _WRITTEN_TOPIC
        raise InvalidOptionError(
            f"{which} be specified for spark_log source: {', '.join(_STRATEGY_OPTIONS)}. See the docs for more details."
            + hint
        )
    [(name, text)] = texts.items()
    if name == "subscribe":
        return _subscribe(text)
    if name == "subscribepattern":
        return _subscribe_pattern(text)
    partitions = parse_assign(text.strip()) if text.strip().startswith("{") else ()
    if not partitions:
        raise InvalidOptionError(f"No topicpartitions to assign as specified value for option 'assign' is '{text}'")
    for topic in dict.fromkeys(tp.topic for tp in partitions):
        validate_topic_name(topic, "option 'assign': topic")
    return AssignPartitions(partitions)


def _subscribe(text: str) -> SubscribeTopics:
    topics = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not topics:
        raise InvalidOptionError(f"No topics to subscribe to as specified value for option 'subscribe' is '{text}'")
    return SubscribeTopics(tuple(validate_topic_name(topic, "option 'subscribe': topic") for topic in topics))


def _subscribe_pattern(text: str) -> SubscribePattern:
    pattern = text.strip()
    if not pattern:
        raise InvalidOptionError(
            f"Pattern to subscribe is empty as specified value for option 'subscribePattern' is '{text}'"
        )
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise InvalidOptionError(f"Option 'subscribePattern' is not a regular expression: {text!r} ({error})") from None
    return SubscribePattern(pattern)
