"""The topics that the cluster itself writes and keeps in files: `__metrics` and `__audit`.

They are made at their first record. Values are JSON with a schema, so that segment files and the Delta table have
columns; a newer spark-log adds the fields that it knows. Records are appended whatever the configs of the topic say
about records: no limit or schema that a user sets can switch the audit off.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.lease import Fence, unfenced
from spark_log.cluster.names import AUDIT_TOPIC, METRICS_TOPIC
from spark_log.cluster.topics import Topic, find_topic, find_topics
from spark_log.config.values import DAY_MS
from spark_log.errors import FatalError, TopicAlreadyExistsError, redact
from spark_log.log.append.encoding import Encoding, prepare
from spark_log.log.append.rules import Rejected
from spark_log.log.log import Log, Records
from spark_log.log.records.record_limits import RECORD_BYTES_MAX, RecordLimits
from spark_log.log.records.schema import RECORD_SCHEMA
from spark_log.metadata.store import DEFAULT_TIMEOUT_MS, READ_TIMEOUT_MS, StoreClock
from spark_log.replication.controller.topic_operations import alter_configs, create_internal_topic

logger = logging.getLogger(__name__)

REPLICATION_FACTOR_MAX = 3

_LIMITS = RecordLimits(max_message_bytes=RECORD_BYTES_MAX)
"""In place of max.message.bytes, message.timestamp.*.max.ms and cleanup.policy of the topic."""

_DELTA_LAG_MS = 10 * 60_000
"""Age at which records are written to a file: every 10 minutes, so that a quiet topic does not get a file a minute."""


@dataclass(frozen=True)
class RecordedTopic:
    """A topic that the cluster writes. `fields`: of its JSON values, as Spark DDL. `configs`: when it is made; an
    operator may alter them.
    """

    name: str
    partitions: int
    fields: str
    configs: Mapping[str, str]

    @property
    def all_configs(self) -> dict[str, str]:
        return {
            "value.format": "json",
            "value.schema": self.fields,
            "delta.max.lag.ms": str(_DELTA_LAG_MS),
            **self.configs,
        }


@dataclass(frozen=True)
class Recorded:
    """A record for one of these topics. `fields` without a value are left out."""

    partition: int
    key: str
    fields: Mapping[str, Any]


METRICS = RecordedTopic(
    METRICS_TOPIC,
    5,
    "kind STRING, name STRING, topic STRING, interval_s DOUBLE, appended BIGINT, committed BIGINT, rate DOUBLE,"
    " end_offset BIGINT, records BIGINT, bytes BIGINT, tail_bytes BIGINT, delta_lag_s DOUBLE, offline BIGINT,"
    " under_replicated BIGINT, topics BIGINT, partitions BIGINT, brokers BIGINT, open_transactions BIGINT,"
    " omitted BIGINT, lag BIGINT, lag_s DOUBLE, members BIGINT,"
    " lease STRING, start_ms BIGINT, seconds DOUBLE, outcome STRING, error STRING, notes STRING,"
    " query_name STRING, run_id STRING, state STRING, batch_id BIGINT, input_records BIGINT, input_rate DOUBLE,"
    " processed_rate DOUBLE, batch_s DOUBLE, state_rows BIGINT, state_bytes BIGINT,"
    " progress_ms BIGINT",
    {"retention.ms": str(30 * DAY_MS)},
)
"""Measurements, 30 days. Its partitions are the kinds of `facts.metrics.history.Kind`."""

AUDIT = RecordedTopic(
    AUDIT_TOPIC,
    1,
    "who STRING, action STRING, target STRING, parameters STRING, outcome STRING, error STRING, source STRING",
    {"retention.ms": str(365 * DAY_MS)},
)
"""Changes by users, one year."""


def find_recorded(cluster: Cluster, recorded: RecordedTopic, *, timeout_ms: int = READ_TIMEOUT_MS) -> Topic | None:
    """The topic, or None if nothing has been recorded yet."""
    found = cluster.store.read(lambda connection: find_topics(connection, [recorded.name]), timeout_ms=timeout_ms)
    return found.get(recorded.name)


def append_records(
    cluster: Cluster,
    recorded: RecordedTopic,
    records: Sequence[Recorded],
    *,
    fence: Fence = unfenced,
    timeout_ms: int = DEFAULT_TIMEOUT_MS,
) -> None:
    """Append the records in one transaction, in which `fence` is called first. Makes the topic if it is missing.

    Raises SparkLogErrors: callers for whom the record is not the purpose catch them.
    """
    if not records:
        return
    topic = _prepared_topic(cluster, recorded, timeout_ms)
    now_ms = cluster.store.now().wall_ms
    encoding = replace(Encoding.of(topic), limits=_LIMITS, rejecting=())
    items = [
        (topic, Records(number, prepare(_table(records, number, now_ms), encoding, now_ms)))
        for number in sorted({record.partition for record in records})
    ]

    def check(connection: sa.Connection, _now: StoreClock) -> bool:
        fence(connection)
        return True

    log = Log(cluster, holder=recorded.name, internal=True)
    try:
        for outcome in log.append_prepared(items, timeout_ms=timeout_ms, hooks=(check,)):
            if isinstance(outcome, Rejected):
                raise outcome.error
    finally:
        log.close(more_to_come=True)


def _table(records: Sequence[Recorded], partition: int, now_ms: int) -> pa.Table:
    here = [record for record in records if record.partition == partition]
    values = [
        json.dumps({name: value for name, value in record.fields.items() if value is not None}).encode()
        for record in here
    ]
    times = pa.array([now_ms * 1000] * len(here), pa.int64()).cast(RECORD_SCHEMA.field("timestamp").type)
    keys = [record.key.encode() for record in here]
    columns = [pa.array(keys, pa.binary()), pa.array(values, pa.binary()), pa.nulls(len(here)), times]
    return pa.table(dict(zip(RECORD_SCHEMA.names, columns, strict=True))).cast(RECORD_SCHEMA)


def _prepared_topic(cluster: Cluster, recorded: RecordedTopic, timeout_ms: int) -> Topic:
    """The topic with all fields, made or altered if necessary; as it is, if a user has given it a schema that these
    fields do not fit.
    """
    topic = find_recorded(cluster, recorded, timeout_ms=timeout_ms)
    if topic is None:
        with suppress(TopicAlreadyExistsError):  # by another process, just now
            create_internal_topic(
                cluster, recorded.name, recorded.partitions, REPLICATION_FACTOR_MAX, recorded.all_configs
            )
        topic = cluster.store.read(lambda connection: find_topic(connection, recorded.name))
    if not _field_names(recorded) <= _field_names(topic):
        try:
            topic = alter_configs(cluster, recorded.name, {"value.format": "json", "value.schema": recorded.fields})
        except FatalError as error:
            logger.warning("%s has no columns of its own: %s", recorded.name, redact(str(error)))
    return topic


def _field_names(of: RecordedTopic | Topic) -> set[str]:
    if isinstance(of, RecordedTopic):
        return {each.split()[0] for each in of.fields.split(",")}
    value = None if of.columns is None else of.columns.value
    return set() if value is None else set(value.fields.names)
