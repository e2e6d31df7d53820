"""Defines the topics that the cluster itself writes and keeps in files: `__metrics` and `__audit`.

A topic is created at its first record. Values are JSON with a schema, so that segment files and the Delta table have
columns; a newer spark-log adds the fields that it knows. `maintenance.recorded_appends` writes the records.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.names import AUDIT_TOPIC, METRICS_TOPIC
from spark_log.cluster.topics import Topic, find_topics
from spark_log.config.values import DAY_MS
from spark_log.metadata.store import READ_TIMEOUT_MS

_DELTA_LAG_MS = 10 * 60_000
"""Age at which records are written to a file: every 10 minutes, so that a quiet topic does not get a file a minute."""


@dataclass(frozen=True)
class RecordedTopic:
    """A topic that the cluster writes. `fields` are those of its JSON values, as Spark DDL. The topic is created with
    `configs`, which an operator may alter.
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
"""The measurements of 30 days. The partitions are the kinds of `facts.metrics.history.Kind`."""

AUDIT = RecordedTopic(
    AUDIT_TOPIC,
    1,
    "who STRING, action STRING, target STRING, parameters STRING, outcome STRING, error STRING, source STRING",
    {"retention.ms": str(365 * DAY_MS)},
)
"""The changes that users have made within one year."""


def find_recorded(cluster: Cluster, recorded: RecordedTopic, *, timeout_ms: int = READ_TIMEOUT_MS) -> Topic | None:
    """Return the topic, or None if nothing has been recorded yet."""
    found = cluster.store.read(lambda connection: find_topics(connection, [recorded.name]), timeout_ms=timeout_ms)
    return found.get(recorded.name)
