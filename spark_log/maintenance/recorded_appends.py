"""Appends to the topics that the cluster itself writes, `__metrics` and `__audit`.

Records are appended whatever the configs of the topic require of records: no limit or schema that a user sets can
switch the audit off.
"""

import json
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa
import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.lease import Fence, unfenced
from spark_log.cluster.topics import Topic, find_topic
from spark_log.errors import FatalError, TopicAlreadyExistsError, redact
from spark_log.facts.metrics.recorded_topics import Recorded, RecordedTopic, find_recorded
from spark_log.log.append.encoding import Encoding, prepare
from spark_log.log.append.rules import Rejected
from spark_log.log.log import Records
from spark_log.log.records.record_limits import RECORD_BYTES_MAX, RecordLimits
from spark_log.log.records.schema import RECORD_SCHEMA
from spark_log.maintenance.client_log import ClientLog
from spark_log.metadata.store import DEFAULT_TIMEOUT_MS
from spark_log.metadata.store_clock import StoreClock
from spark_log.replication.controller.topic_operations import alter_configs, create_internal_topic

logger = logging.getLogger(__name__)

REPLICATION_FACTOR_MAX = 3

_LIMITS = RecordLimits(max_message_bytes=RECORD_BYTES_MAX)
"""The limits that replace max.message.bytes, message.timestamp.*.max.ms and cleanup.policy of the topic."""


def append_records(
    cluster: Cluster,
    recorded: RecordedTopic,
    records: Sequence[Recorded],
    *,
    fence: Fence = unfenced,
    timeout_ms: int = DEFAULT_TIMEOUT_MS,
) -> None:
    """Append the records in one transaction, in which `fence` is called first. A missing topic is created.

    Raises SparkLogError. A caller whose own work must not fail because of a record catches it.
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

    log = ClientLog(cluster, holder=recorded.name, internal=True)
    try:
        for outcome in log.append_prepared(items, timeout_ms=timeout_ms, hooks=(check,)):
            if isinstance(outcome, Rejected):
                raise outcome.error
    finally:
        log.close(more_to_come=True)


def _table(records: Sequence[Recorded], partition: int, now_ms: int) -> pa.Table:
    rows = []
    for record in records:
        if record.partition == partition:
            value = json.dumps({name: value for name, value in record.fields.items() if value is not None})
            rows.append({"key": record.key.encode(), "value": value.encode(), "timestamp": now_ms * 1000})
    return pa.Table.from_pylist(rows, schema=RECORD_SCHEMA)


def _prepared_topic(cluster: Cluster, recorded: RecordedTopic, timeout_ms: int) -> Topic:
    """Return the topic with all fields, created or altered if necessary. It stays unchanged if its schema, which a user
    has set, does not fit these fields.
    """
    topic = find_recorded(cluster, recorded, timeout_ms=timeout_ms)
    if topic is None:
        with suppress(TopicAlreadyExistsError):  # another process has just created it
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
