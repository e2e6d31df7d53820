"""The parts of jobs that need no Spark: what they do after their query."""

import pytest

from spark_log.ids import TopicPartition
from spark_log.replication.controller.topic_operations import delete_topic
from spark_log.spark.jobs.queries.produce_query import after_write
from tests.support.topics import append, make

pytestmark = pytest.mark.on_sqlite

T0 = TopicPartition("t", 0)


def test_produce_succeeds_if_the_offsets_of_its_summary_cannot_be_read(cluster, log, caplog):
    topic = make(cluster, "t")
    append(log, "t", "a")
    assert after_write(cluster, topic, {T0: 0})[:2] == ({T0: 0}, {T0: 1})
    delete_topic(cluster, "t")
    assert after_write(cluster, topic, {T0: 0}) == ({}, {}, None)
    (warning,) = caplog.messages
    assert warning.startswith("The rows are written, but their offsets cannot be read: topic 't'")
