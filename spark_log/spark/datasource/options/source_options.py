"""Parses the options of `format("spark_log")`: text becomes types once, here.

Names, defaults, precedence and messages are those of Spark's connector ("Structured Streaming + Kafka Integration
Guide", KafkaSourceProvider). Keys are case-insensitive, unknown keys are ignored; kafka_options.py has the treatment of
each `kafka.…`. Invalid options raise InvalidOptionError (a topic name: InvalidTopicError) that names the option and the
value. Reprs and messages do not show passwords of cluster addresses.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal

from spark_log.cluster.names import validate_user_topic
from spark_log.errors import InvalidOptionError, redact
from spark_log.groups.group_names import check_group_id
from spark_log.log.columns.key_and_value import RECORDS, TYPED
from spark_log.spark.datasource.options.kafka_options import refuse_kafka_options
from spark_log.spark.datasource.options.offset_json import EARLIEST, LATEST, parse_offsets, parse_timestamps
from spark_log.spark.datasource.options.option_text import INT32_MAX, INT64_MAX, INTEGER, OptionText
from spark_log.spark.datasource.options.positions import (
    CommittedOffsets,
    EarliestOffsets,
    GlobalTimestamp,
    LatestOffsets,
    Position,
    SpecificOffsets,
    SpecificTimestamps,
    TimestampStrategy,
    check_unresolved,
)
from spark_log.spark.datasource.options.starting_lineage import StartingLineage
from spark_log.spark.datasource.options.topic_choice import Subscription, parse_subscription
from spark_log.transactions.rules import ProducerRef

CLUSTER_ENVIRONMENT_VARIABLE = "SPARK_LOG_CLUSTER"
_CLUSTER_FILE_ENVIRONMENT_VARIABLE = "SPARK_LOG_CLUSTER_FILE"
"""A variable that names a file. The first line of the file is the address."""
DEFAULT_MAX_TRIGGER_DELAY_MS = 15 * 60 * 1000

READ_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
"""The default fields of a row, in order. With includeHeaders, `headers` follows them."""
HEADERS_COLUMN = "headers"

_ACKS = ("all", "-1", "0", "1")
_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

TXN_APP_ID_LENGTH_MAX = 508
"""Maximum length: the size of column `spark_batch.application` without the prefix "txn:"."""


@dataclass(frozen=True, repr=False)
class ReadOptions:
    """The options of a batch or streaming read. Frozen and picklable; the cluster's address stays on the driver."""

    cluster: str
    """Folder or SQLAlchemy URL: option `cluster` (alias kafka.bootstrap.servers), otherwise the environment."""
    subscription: Subscription
    """From exactly one of subscribe, subscribePattern, assign."""
    starting: Position
    """From startingTimestamp, else startingOffsetsByTimestamp, else startingOffsets. By default a batch starts at
    earliest, a stream at latest. Unlike Kafka's connector, it accepts `committed`: the committed offsets of group.id.
    """
    ending: Position
    """From endingTimestamp, else endingOffsetsByTimestamp, else endingOffsets. It is always latest for a stream."""
    starting_lineage: StartingLineage | None = None
    """Option `startingLineage`, which `stream_topic` sets. With None, starting offsets belong to the present log."""
    starting_timestamp_strategy: TimestampStrategy = "error"
    """startingOffsetsByTimestampStrategy: the start of a partition without a record at or after the start timestamp."""
    fail_on_data_loss: bool = True
    include_headers: bool = False
    """Whether rows have the field `headers`, because of includeHeaders or because `columns` names it."""
    columns: tuple[str, ...] = READ_COLUMNS
    """Fields of the rows, in order; a field of typed records has a dotted path. Option `columns`, which Kafka's
    connector does not have, chooses them. The default is READ_COLUMNS, and `headers` with includeHeaders.
    """
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_offsets_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    """Approximate limit of the stored bytes of a batch. Kafka's connector has no such option; Delta's has."""
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = DEFAULT_MAX_TRIGGER_DELAY_MS
    group_id: str | None = None
    """Group of option `group.id` (kafka.group.id). A query commits to it, and may start at its committed offsets."""
    group_id_prefix: str | None = None
    """Option groupIdPrefix. It has no effect: a query is no member of a group."""
    client_rack: str | None = None
    """Rack of the executors. They read segments from a replica in it, if there is one. Option `kafka.client.rack`."""

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool | None, environ: Mapping[str, str]) -> "ReadOptions":
        """Parse `options` as Spark passes them; `environ` is os.environ. Raises InvalidOptionError.

        `streaming` is None if it is not known yet. Then only values that are invalid for both a batch and a stream are
        refused.
        """
        texts = OptionText(options)
        if streaming:
            texts.refuse("endingoffsets", "ending offset not valid in streaming queries")
            texts.refuse("endingoffsetsbytimestamp", "ending timestamp not valid in streaming queries")
            texts.refuse("endingtimestamp", "ending timestamp not valid in streaming queries")
        starting = _position(texts, "starting", LatestOffsets() if streaming else EarliestOffsets())
        ending = _position(texts, "ending", LatestOffsets())
        if streaming is False:
            _check_start_of_batch(starting)
        if not streaming:
            _check_end_of_batch(ending)
        _check_committed(texts, starting, ending)
        subscription = parse_subscription(texts)
        min_partitions = texts.positive("minPartitions", "minPartitions", INT32_MAX)
        max_records = texts.positive("maxRecordsPerPartition", "maxrecordsperpartition", INT64_MAX)
        refuse_kafka_options(texts, "read")
        texts.one_of("kafka.isolation.level", ("read_committed", "read_uncommitted"), "read_committed")
        cluster = _cluster(texts, environ)
        max_offsets = texts.positive("maxOffsetsPerTrigger", "maxOffsetsPerTrigger", INT64_MAX)
        min_offsets = texts.positive("minOffsetsPerTrigger", "minOffsetsPerTrigger", INT64_MAX)
        if min_offsets is not None and max_offsets is not None and min_offsets > max_offsets:
            raise InvalidOptionError(
                f"The value of minOffsetPerTrigger({min_offsets}) is higher than the "
                f"maxOffsetsPerTrigger({max_offsets})."
            )
        if streaming is False:
            check_unresolved(starting, ending)
        columns = _columns(texts)
        lineage = texts.text("startingLineage")
        return cls(
            cluster=cluster,
            subscription=subscription,
            starting=starting,
            ending=ending,
            starting_lineage=None if lineage is None else StartingLineage.parse(lineage, streaming=streaming),
            starting_timestamp_strategy=_timestamp_strategy(texts),
            fail_on_data_loss=texts.boolean("failOnDataLoss", True),
            include_headers=HEADERS_COLUMN in columns,
            columns=columns,
            min_partitions=min_partitions,
            max_records_per_partition=max_records,
            max_offsets_per_trigger=max_offsets,
            max_bytes_per_trigger=texts.bytes("maxBytesPerTrigger"),
            min_offsets_per_trigger=min_offsets,
            max_trigger_delay_ms=texts.duration_ms("maxTriggerDelay", DEFAULT_MAX_TRIGGER_DELAY_MS),
            group_id=texts.word("group.id", "kafka.group.id"),
            group_id_prefix=texts.word("groupIdPrefix"),
            client_rack=(texts.text("kafka.client.rack") or "").strip() or None,
        )

    def __repr__(self) -> str:
        return _redacted_repr(self)


@dataclass(frozen=True)
class TxnVersion:
    """Identifies a batch write. As in Delta, it writes nothing unless `version` is above the application's last."""

    app_id: str
    version: int


@dataclass(frozen=True)
class PendingWrite:
    """A batch write whose rows become pending in an open transaction; the owner of the transaction commits them."""

    ref: ProducerRef
    order: int
    """Order among the writes of the transaction. Rows of a write with a lower order come first in the log."""

    def __str__(self) -> str:
        ref = self.ref
        return f"{ref.producer_id}:{ref.epoch}:{self.order}"


@dataclass(frozen=True, repr=False)
class WriteOptions:
    """The options of a batch or streaming write. Frozen and picklable."""

    cluster: str
    """Folder or SQLAlchemy URL: option `cluster` (alias kafka.bootstrap.servers), otherwise the environment."""
    topic: str | None = None
    """Topic of every row; overrides the column `topic`. With None, each row names its own topic."""
    txn: TxnVersion | None = None
    """txnAppId and txnVersion: both or neither are set, for batch writes only."""
    pending: PendingWrite | None = None
    """Option `transaction`, which `streams.batch_transaction` sets for its batch writes."""
    group: str | None = None
    """Option `group.id` (alias kafka.group.id), of streaming writes: the sink commits the query's end offsets to this
    group, together with the rows.
    """
    compression_type: str | None = None
    """Option `kafka.compression.type`, for topics without their own compression type. None uses the topic's."""
    checkpoint: str | None = None
    """Option `checkpointLocation`, a path or a URI, of streaming writes. Spark's offset log is there."""

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool, environ: Mapping[str, str]) -> "WriteOptions":
        """Parse `options`. Raises InvalidOptionError, or PolicyViolationError for an internal topic."""
        texts = OptionText(options)
        refuse_kafka_options(texts, "write")
        texts.one_of("kafka.acks", _ACKS, "all")
        topic = texts.text("topic")
        if topic is not None:
            topic = validate_user_topic(topic.strip(), "write to", "option 'topic'")
        txn, pending = _txn(texts, streaming), _pending(texts, streaming)
        if txn is not None and pending is not None:
            raise InvalidOptionError(f"Options 'txnAppId' ({txn.app_id!r}) and 'transaction' exclude each other")
        codec = texts.one_of("kafka.compression.type", _CODECS, "none")
        cluster = _cluster(texts, environ)
        checkpoint = texts.word("checkpointLocation") if streaming else None
        group = _group(texts, streaming, checkpoint)
        return cls(cluster, topic, txn, pending, group, None if codec == "none" else codec, checkpoint)

    def __repr__(self) -> str:
        return _redacted_repr(self)


def parse_columns(options: Mapping[str, str]) -> tuple[str, ...]:
    """Return the fields of the rows read. They depend only on includeHeaders and `columns`; used for the schema."""
    return _columns(OptionText(options))


def _cluster(options: OptionText, environ: Mapping[str, str]) -> str:
    cluster = options.word("cluster", "kafka.bootstrap.servers")
    for variable in (CLUSTER_ENVIRONMENT_VARIABLE, _CLUSTER_FILE_ENVIRONMENT_VARIABLE):
        cluster = cluster or environ.get(variable, "").strip()
    if not cluster:
        raise InvalidOptionError(
            "Option 'cluster' must be specified: the folder or the URL of a spark-log cluster "
            f"(alias 'kafka.bootstrap.servers', or environment variable {CLUSTER_ENVIRONMENT_VARIABLE})"
        )
    return cluster


def _position(options: OptionText, side: Literal["starting", "ending"], default: Position) -> Position:
    if (text := options.text(f"{side}Timestamp")) is not None:
        number = text.strip()
        if not INTEGER.fullmatch(number) or int(number) > INT64_MAX:
            raise InvalidOptionError(f"Expected a single long value, got {number}")
        if int(number) < 0:
            raise InvalidOptionError(f"Option '{side}Timestamp' must not be negative, got {number}")
        return GlobalTimestamp(int(number))
    if (text := options.text(f"{side}OffsetsByTimestamp")) is not None:
        return SpecificTimestamps(parse_timestamps(text.strip()))
    if (text := options.text(f"{side}Offsets")) is None:
        return default
    match text.strip().lower():
        case "earliest":
            return EarliestOffsets()
        case "latest":
            return LatestOffsets()
        case "committed":
            return CommittedOffsets()
        case _:
            return SpecificOffsets(parse_offsets(text.strip()))


def _check_start_of_batch(starting: Position) -> None:
    if isinstance(starting, LatestOffsets):
        raise InvalidOptionError("starting offset can't be latest for batch queries on spark_log")
    for tp, offset in starting.offsets.items() if isinstance(starting, SpecificOffsets) else ():
        if offset == LATEST:
            raise InvalidOptionError(f"startingOffsets for {tp} can't be latest for batch queries on spark_log")


def _check_end_of_batch(ending: Position) -> None:
    """Check the ending offsets. Streams accept none, so it need not be known yet whether the read is a stream."""
    if isinstance(ending, EarliestOffsets):
        raise InvalidOptionError("ending offset can't be earliest for batch queries on spark_log")
    for tp, offset in ending.offsets.items() if isinstance(ending, SpecificOffsets) else ():
        if offset == EARLIEST:
            raise InvalidOptionError(f"ending offset for {tp} can't be earliest for batch queries on spark_log")


def _check_committed(options: OptionText, starting: Position, ending: Position) -> None:
    if isinstance(ending, CommittedOffsets):
        raise InvalidOptionError("endingOffsets can't be committed: a group's offsets say where to start")
    if isinstance(starting, CommittedOffsets) and options.word("group.id", "kafka.group.id") is None:
        raise InvalidOptionError("startingOffsets committed needs option 'group.id': the group whose offsets they are")


def _timestamp_strategy(options: OptionText) -> TimestampStrategy:
    word = options.one_of("startingOffsetsByTimestampStrategy", ("error", "latest"), "error")
    return "latest" if word == "latest" else "error"


def _columns(options: OptionText) -> tuple[str, ...]:
    with_headers = options.boolean("includeHeaders", False)
    text = options.text("columns")
    if text is None:
        return (*READ_COLUMNS, HEADERS_COLUMN) if with_headers else READ_COLUMNS
    columns_by_name = {name.lower(): name for name in (*READ_COLUMNS, HEADERS_COLUMN, *TYPED)}
    names = [name.strip() for name in text.split(",")]
    for at, name in enumerate(names):
        column, dot, _ = name.partition(".")
        if column.lower() not in columns_by_name or (dot and column.lower() not in RECORDS):
            choice = ", ".join([*columns_by_name.values(), *(f"{record}.<field>" for record in RECORDS)])
            raise InvalidOptionError(f"Option 'columns' has no column {name!r}: choose from {choice}")
        if name.lower() in (other.lower() for other in names[:at]):
            raise InvalidOptionError(f"Option 'columns' names {name!r} twice: {text!r}")
    columns = tuple(
        columns_by_name[column.lower()] + dot + path for column, dot, path in (name.partition(".") for name in names)
    )
    if options.text("includeHeaders") is not None and with_headers != (HEADERS_COLUMN in columns):
        raise InvalidOptionError(
            f"Options 'columns' ({text!r}) and 'includeHeaders' ({with_headers}) contradict each other"
        )
    return columns


def _txn(options: OptionText, streaming: bool) -> TxnVersion | None:
    app_id, version = options.word("txnAppId"), options.integer("txnVersion", INT64_MAX)
    if app_id is None and version is None:
        return None
    if app_id is None or version is None:
        missing, there = ("txnAppId", "txnVersion") if app_id is None else ("txnVersion", "txnAppId")
        raise InvalidOptionError(
            f"Option '{missing}' must be specified too where '{there}' is ({options.text(there)!r})"
        )
    if len(app_id) > TXN_APP_ID_LENGTH_MAX:
        raise InvalidOptionError(
            f"Option 'txnAppId' must have at most {TXN_APP_ID_LENGTH_MAX} characters, got {len(app_id)}:"
            f" {app_id[:50]!r}…"
        )
    if version < 0:
        raise InvalidOptionError(f"Option 'txnVersion' must not be negative, got {version}")
    if streaming:
        raise InvalidOptionError(
            f"Options 'txnAppId' ({app_id!r}) and 'txnVersion' ({version}) are for batch writes: "
            "a streaming query already writes each of its batches once"
        )
    return TxnVersion(app_id, version)


def _pending(options: OptionText, streaming: bool) -> PendingWrite | None:
    text = options.word("transaction")
    if text is None:
        return None
    numbers = text.split(":")
    if streaming or len(numbers) != 3 or not all(INTEGER.fullmatch(number) for number in numbers):
        raise InvalidOptionError(
            f"Option 'transaction' ({text!r}) is set by spark_log.spark.streams.batch_transaction, for its batch writes"
        )
    producer_id, epoch, order = map(int, numbers)
    return PendingWrite(ProducerRef(producer_id, epoch), order)


def _group(options: OptionText, streaming: bool, checkpoint: str | None) -> str | None:
    group_id = options.word("group.id", "kafka.group.id")
    if group_id is None:
        return None
    if not streaming:
        raise InvalidOptionError(
            f"Option 'group.id' ({group_id!r}) of a write is for streaming queries: a batch has no offsets to commit"
        )
    if checkpoint is None:
        raise InvalidOptionError(
            f"Option 'checkpointLocation' must be specified where a sink has 'group.id' ({group_id!r}): the offsets of"
            " a batch are read there"
        )
    return check_group_id(group_id)


def _redacted_repr(options: ReadOptions | WriteOptions) -> str:
    shown = (
        f"{entry.name}={redact(repr(value)) if entry.name == 'cluster' else repr(value)}"
        for entry in fields(options)
        for value in (getattr(options, entry.name),)
    )
    return f"{type(options).__name__}({', '.join(shown)})"
