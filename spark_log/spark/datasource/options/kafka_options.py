"""Defines how `format("spark_log")` treats each option of Kafka's clients (`kafka.…`), in one table.

Spark's Kafka connector passes these options to its consumers and producers; spark-log has none. Some options are
honoured. Others are refused, because a read or a write without them would have another meaning or less protection. The
rest is ignored, because records, order and delivery are the same without them. An option without a row is ignored, as
Kafka's clients ignore unknown names. docs/guides/from-spark-kafka.md is for users.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from spark_log.errors import InvalidOptionError
from spark_log.spark.datasource.options.option_text import OptionText

PREFIX = "kafka."

Side: TypeAlias = Literal["read", "write"]


@dataclass(frozen=True)
class Honoured:
    """An option that `source_options.py` reads. `meaning` explains its effect."""

    meaning: str


@dataclass(frozen=True)
class Ignored:
    """An option that has no effect on reads and writes. `reason` explains why none is needed."""

    reason: str


@dataclass(frozen=True)
class Refused:
    """An option that is an error on these sides, and is ignored on the other one. The value `unless` is no error,
    because spark-log behaves so without the option.

    `{name}` in `message` is the option without its prefix. Options with the same message are named together.
    """

    sides: tuple[Side, ...]
    message: str
    unless: str | None = None
    shows_value: bool = False


Decision: TypeAlias = Honoured | Ignored | Refused

_BOTH: tuple[Side, ...] = ("read", "write")
_SECURITY = (
    "{name} not supported: spark-log has no connection to a broker. Remove them; the address of the metadata store"
    " carries credentials and TLS (postgresql+psycopg://user:password@host/database?sslmode=verify-full), and each"
    " storage of log dirs has its own."
)
_PARTITIONER = "{name} not supported: the hash of the key chooses the partition, or column 'partition' does."
_TUNING = "tunes requests to brokers; there are none"

KAFKA_OPTIONS: Mapping[str, Decision] = {
    "bootstrap.servers": Honoured("alias of option cluster"),
    "group.id": Honoured("alias of option group.id"),
    "client.rack": Honoured("reads prefer replicas in this rack"),
    "isolation.level": Honoured("both levels read the same: records of a transaction are visible once it is committed"),
    "compression.type": Honoured("codec of writes to topics that have no compression.type of their own"),
    "acks": Honoured("every write has acks=all, which 1 and 0 do not exceed"),
    # refused: without it, secrets or bytes would be unprotected
    "security.*": Refused(_BOTH, _SECURITY),
    "security.protocol": Refused(_BOTH, _SECURITY, unless="PLAINTEXT", shows_value=True),
    "ssl.*": Refused(_BOTH, _SECURITY),
    "sasl.*": Refused(_BOTH, _SECURITY),
    # refused: other records would be read, or the same in another form
    "auto.offset.reset": Refused(
        ("read",),
        "{name} not supported. Instead set the source option 'startingoffsets' to 'earliest' or 'latest' to specify"
        " where to start. Structured Streaming manages which offsets are consumed internally, rather than relying on"
        " the consumer to do it. This will ensure that no data is missed when new topics/partitions are dynamically"
        " subscribed. Note that 'startingoffsets' only applies when a new Streaming query is started, and that resuming"
        " will always pick up from where the query left off.",
    ),
    "enable.auto.commit": Refused(
        ("read",),
        "{name} not supported. Set the source option 'group.id' to have a query commit the end offsets of each batch.",
    ),
    "key.deserializer": Refused(
        ("read",),
        "{name} not supported as keys are deserialized as byte arrays. Use DataFrame operations to explicitly"
        " deserialize the keys.",
    ),
    "value.deserializer": Refused(
        ("read",),
        "{name} not supported as values are deserialized as byte arrays. Use DataFrame operations to explicitly"
        " deserialize the values.",
    ),
    "interceptor.classes": Refused(_BOTH, "{name} not supported. Use DataFrame operations instead."),
    # refused: other records would be written, elsewhere, or visible at another time
    "key.serializer": Refused(("write",), "{name} not supported as keys are written as byte arrays."),
    "value.serializer": Refused(("write",), "{name} not supported as values are written as byte arrays."),
    "partitioner.class": Refused(("write",), _PARTITIONER),
    "partitioner.ignore.keys": Refused(("write",), _PARTITIONER, unless="false"),
    "transactional.id": Refused(
        ("write",),
        "{name} not supported: every batch and micro-batch is written all or nothing. For a batch that is done once"
        " set options 'txnAppId' and 'txnVersion'; for several writes in one transaction use"
        " spark_log.spark.streams.batch_transaction.",
    ),
    # ignored
    "enable.idempotence": Ignored("writes are all or nothing and never duplicated by a retry"),
    "max.request.size": Ignored("the topic's max.message.bytes limits a record"),
    "max.in.flight.requests.per.connection": Ignored("records keep their order"),
    "transaction.timeout.ms": Ignored("transactional.id is refused"),
    "check.crcs": Ignored("checksums are always verified"),
    "allow.auto.create.topics": Ignored("a topic that does not exist is an error, as in Spark's connector"),
    "exclude.internal.topics": Ignored("a pattern never matches internal topics, as in Spark's connector"),
    "group.instance.id": Ignored("queries are no members of their group"),
    "auto.commit.interval.ms": Ignored("enable.auto.commit is refused"),
    "client.id": Ignored("names a client in a broker's log"),
    "metric.reporters": Ignored("metrics are Spark's"),
    **dict.fromkeys(
        (
            "batch.size", "buffer.memory", "connections.max.idle.ms", "default.api.timeout.ms", "delivery.timeout.ms",
            "fetch.max.bytes", "fetch.max.wait.ms", "fetch.min.bytes", "heartbeat.interval.ms", "linger.ms",
            "max.block.ms", "max.partition.fetch.bytes", "max.poll.interval.ms", "max.poll.records",
            "metadata.max.age.ms", "receive.buffer.bytes", "reconnect.backoff.max.ms", "reconnect.backoff.ms",
            "request.timeout.ms", "retries", "retry.backoff.ms", "send.buffer.bytes", "session.timeout.ms",
        ),
        Ignored(_TUNING),
    ),
}  # fmt: skip
"""Decisions by name without `kafka.`. `ssl.*` is every name that begins with `ssl.` and has no row of its own."""


def decision_on(name: str) -> Decision:
    """Return the treatment of the option of this name, in lower case and without `kafka.`."""
    return KAFKA_OPTIONS.get(name) or KAFKA_OPTIONS.get(name.partition(".")[0] + ".*") or Ignored("unknown")


def refuse_kafka_options(options: OptionText, side: Side) -> None:
    """Raise InvalidOptionError with the names of all given options that are refused on this side. Shows no secrets."""
    refused: dict[str, list[str]] = {}
    for name in options.names_after(PREFIX):
        decision = decision_on(name)
        if not isinstance(decision, Refused) or side not in decision.sides:
            continue
        value = (options.text(PREFIX + name) or "").strip()
        if decision.unless is not None and value.lower() == decision.unless.lower():
            continue
        shown = f"'{name}' ({value})" if decision.shows_value else f"'{name}'"
        refused.setdefault(decision.message, []).append(shown)
    if refused:
        raise InvalidOptionError(
            "\n".join(
                message.format(
                    name=f"Kafka option{'s' if names[1:] else ''} {', '.join(names)} {'are' if names[1:] else 'is'}"
                )
                for message, names in refused.items()
            )
        )
