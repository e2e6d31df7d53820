"""Topics: creation, deletion, and what their names refer to."""

import json
import uuid

import pytest
import sqlalchemy as sa

from spark_log.cluster.settings import alter_settings
from spark_log.cluster.topics import list_topics
from spark_log.errors import (
    InvalidConfigurationError,
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    InvalidTopicError,
    OffsetOutOfRangeError,
    PolicyViolationError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from spark_log.facts.topics import describe_topics
from spark_log.ids import OffsetRange, TopicPartition
from spark_log.log.append.append_transaction import AppendRequest, run_append_transaction
from spark_log.log.append.encoding import Encoding, blob_batch, encode_inline
from spark_log.log.append.rules import (
    Appended,
)
from spark_log.log.log import Records
from spark_log.maintenance import run_tasks
from spark_log.maintenance.removal.retention import delete_records
from spark_log.metadata import tables as t
from spark_log.replication.controller.topic_operations import (
    add_partitions,
    alter_configs,
    check_new_topic,
    create_topic,
    delete_topic,
)
from tests.support.records import LARGE, SMALL_BLOBS, read_all, table
from tests.support.stores import change, rows_of
from tests.support.topics import find

BAD_TOPICS = {
    "empty": ("", {}, InvalidTopicError),
    "dot": (".", {}, InvalidTopicError),
    "climbs": ("../x", {}, InvalidTopicError),
    "slash": ("a/b", {}, InvalidTopicError),
    "NUL": ("a\0b", {}, InvalidTopicError),
    "250 characters": ("a" * 250, {}, InvalidTopicError),
    "newline": ("a\n", {}, InvalidTopicError),
    "not text": (5, {}, InvalidTopicError),
    "internal": ("__consumer_offsets", {}, PolicyViolationError),
    "taken": ("taken.name", {}, TopicAlreadyExistsError),
    "collides": ("taken_name", {}, TopicAlreadyExistsError),
    "no partitions": ("t", {"partitions": 0}, InvalidPartitionsError),
    "partitions true": ("t", {"partitions": True}, InvalidPartitionsError),
    "partitions text": ("t", {"partitions": "3"}, InvalidPartitionsError),
    "partitions without end": ("t", {"partitions": 10**9}, InvalidPartitionsError),
    "factor 0": ("t", {"replication_factor": 0}, InvalidReplicationFactorError),
    "factor above the brokers": ("t", {"replication_factor": 2}, InvalidReplicationFactorError),
    "factor text": ("t", {"replication_factor": "1"}, InvalidReplicationFactorError),
    "unknown config": ("t", {"configs": {"retention": "1"}}, InvalidConfigurationError),
    "bad config": ("t", {"configs": {"retention.ms": "1e99"}}, InvalidConfigurationError),
    "retention overflow": ("t", {"configs": {"retention.ms": str(2**63)}}, InvalidConfigurationError),
    "min ISR above the factor": ("t", {"configs": {"min.insync.replicas": "2"}}, InvalidConfigurationError),
}


def test_bad_topics_are_refused_by_name_and_nothing_is_written(cluster):
    create_topic(cluster, "taken.name")
    before = rows_of(cluster)
    for case, (name, arguments, error) in BAD_TOPICS.items():
        with pytest.raises(error) as raised:
            create_topic(cluster, name, **arguments)
        assert type(raised.value) is error, case
    assert rows_of(cluster) == before


def test_an_impossible_topic_name_is_an_unknown_topic(cluster):
    for name in ("no-such", "", "a\0b", "\ud800", "x" * 300, None, 5):
        for call in (lambda name=name: find(cluster, name), lambda name=name: describe_topics(cluster, [name])):
            with pytest.raises(Exception) as raised:  # noqa: PT011 - the assertion names the case
                call()
            assert type(raised.value) is UnknownTopicOrPartitionError, repr(name)


def test_the_life_of_a_topic(cluster):
    made = create_topic(cluster, "t", 2, configs={"retention.ms": "1000"})
    check_new_topic(cluster, "u", 2)
    with pytest.raises(TopicAlreadyExistsError):
        check_new_topic(cluster, "t")
    assert [topic.name for topic in list_topics(cluster)] == ["t"]
    (described,) = describe_topics(cluster, ["t"])
    assert described.topic == made
    assert [(p.partition, p.leader, p.isr, p.high_watermark) for p in described.partitions] == [
        (0, 1, (1,), 0),
        (1, 1, (1,), 0),
    ]

    assert alter_configs(cluster, "t", {"segment.bytes": "2000000", "retention.ms": None}).overrides == {
        "segment.bytes": "2000000"
    }
    for changes in ({"segment.bytes": "x"}, {"nope": "1"}, {"nope": None}, {"min.insync.replicas": "2"}):
        with pytest.raises(InvalidConfigurationError):
            alter_configs(cluster, "t", changes)
    assert find(cluster, "t").overrides == {"segment.bytes": "2000000"}

    assert add_partitions(cluster, "t", 4).partition_count == 4
    for total in (4, 3, 0, -1, True, "5", 10**9):
        with pytest.raises(InvalidPartitionsError):
            add_partitions(cluster, "t", total)
    assert len(describe_topics(cluster, ["t"])[0].partitions) == 4

    delete_topic(cluster, "t")
    assert list_topics(cluster) == []
    for gone in (delete_topic, lambda c, n: add_partitions(c, n, 9), lambda c, n: alter_configs(c, n, {})):
        with pytest.raises(UnknownTopicOrPartitionError):
            gone(cluster, "t")
    assert create_topic(cluster, "t").topic_id != made.topic_id, "a recreated topic is another one"


def test_a_deleted_topic_leaves_only_a_folder_for_clean_up(cluster, log):
    empty = rows_of(cluster)
    topic = create_topic(cluster, "t", 2, configs=SMALL_BLOBS)
    log.append(topic, [Records(0, table("a")), Records(1, table(LARGE))])
    log.seal(topic, [0])
    log.close()
    delete_topic(cluster, "t")
    after = rows_of(cluster)
    assert len(after.pop("retired_file")) == 1
    empty.pop("retired_file")
    assert after == empty


def test_an_append_to_a_topic_that_was_deleted_and_created_again_is_refused(cluster, log):
    old = create_topic(cluster, "t", configs=SMALL_BLOBS)
    delete_topic(cluster, "t")
    new = create_topic(cluster, "t")
    (outcome,) = log.append(old, [Records(0, table("late"))])
    assert isinstance(outcome.error, UnknownTopicOrPartitionError)
    with pytest.raises(UnknownTopicOrPartitionError):
        log.append(old, [Records(0, table(LARGE))])
    assert read_all(log, new) == []


def test_delete_records_moves_the_log_start_offset(cluster, log):
    topic = create_topic(cluster, "t", 2)
    log.append(topic, [Records(0, table(*"abcde")), Records(1, table("x"))])
    here, there = TopicPartition("t", 0), TopicPartition("t", 1)
    assert delete_records(cluster, {here: 3}) == {here: 3}
    assert delete_records(cluster, {here: 1}) == {here: 3}, "it never goes back"
    assert read_all(log, topic) == [(0, 3, "d"), (0, 4, "e"), (1, 0, "x")]
    with pytest.raises(OffsetOutOfRangeError, match="t-0"):
        log.plan({here: OffsetRange(2, 5)})
    before = rows_of(cluster)
    for offset in (6, -2, 2**63, True, "3", 2.5, None):
        with pytest.raises(OffsetOutOfRangeError, match="before_offset"):
            delete_records(cluster, {there: 1, here: offset})
    for unknown in (TopicPartition("t", 2), TopicPartition("t", -1), TopicPartition("no", 0)):
        with pytest.raises(UnknownTopicOrPartitionError):
            delete_records(cluster, {there: 1, unknown: 0})
    assert rows_of(cluster) == before, "one bad partition, and none is changed"
    assert delete_records(cluster, {here: -1, there: -1}) == {here: 5, there: 1}
    assert read_all(log, topic) == []
    assert log.append(topic, [Records(0, table("f"))]) == [Appended(5, 6)]


MANY = 6_000
"""Partitions; more than those of one chunk."""


def test_statements_do_not_grow_with_the_partitions(cluster, log):
    """Thousands of partitions take only seconds because the number of statements is constant."""
    statements = []
    sa.event.listen(cluster.store.engine, "before_cursor_execute", lambda *args: statements.append(args[2]))

    def count(action):
        statements.clear()
        result = action()
        # ANALYZE runs once, for many partitions; cluster settings are read again after some seconds
        return len([each for each in statements if not each.startswith("ANALYZE") and ".settings" not in each]), result

    small, _ = count(lambda: create_topic(cluster, "small", 10))
    large, topic = count(lambda: create_topic(cluster, "large", MANY))
    assert large == small
    small, _ = count(lambda: describe_topics(cluster, ["small"]))
    large, (description,) = count(lambda: describe_topics(cluster, ["large"]))
    assert large == small
    assert len(description.partitions) == MANY
    encoding, blob = Encoding.of(topic), encode_inline(table("x"), Encoding.of(topic))

    def flush(partitions):
        names = [uuid.uuid4().hex for _ in range(partitions)]
        batches = [blob_batch(topic.topic_id, i, name, blob.facts, encoding) for i, name in enumerate(names)]
        return run_append_transaction(cluster.store, AppendRequest(batches, dict.fromkeys(names, blob.data)))

    small, _ = count(lambda: flush(100))  # SQLite inserts a few rows one by one
    large, result = count(lambda: flush(MANY))
    assert large <= small + 2, "partitions are locked in chunks of 5,000"
    assert len([outcome for outcome in result.outcomes if isinstance(outcome, Appended)]) == MANY
    ranges = {TopicPartition("large", i): OffsetRange(0, 1) for i in range(MANY)}
    small, _ = count(lambda: log.plan({tp: ranges[tp] for tp in list(ranges)[:10]}))
    large, plan = count(lambda: log.plan(ranges))
    assert large <= small + 2, "blobs are read in chunks of 5,000"
    assert len(plan.slices) == MANY


def test_a_config_of_a_newer_release_stops_no_work(cluster):
    """A process of this release may run beside a newer one that has set a config which this one does not know."""
    create_topic(cluster, "t", configs={"retention.ms": "-1"})
    newer = {"retention.ms": "-1", "some.new.config": "1", "compression.type": "a codec of tomorrow"}
    change(cluster, t.topic.update().values(configs=json.dumps(newer)))
    assert [topic.config.retention_ms for topic in list_topics(cluster) if topic.name == "t"] == [-1]
    reports = list(run_tasks(cluster, ["seal", "retention", "compact", "merge", "delta"]))
    assert not any(report.notes for report in reports)
    assert alter_configs(cluster, "t", {"retention.bytes": "1"}).overrides.keys() == {*newer, "retention.bytes"}
    with pytest.raises(InvalidConfigurationError, match=r"some\.new\.config"):
        alter_configs(cluster, "t", {"some.new.config": "2"})
    left = alter_configs(cluster, "t", {"some.new.config": None}).overrides.keys()
    assert left == {"retention.ms", "compression.type", "retention.bytes"}


def test_only_allowed_schema_registries_can_be_named(cluster):
    alter_settings(cluster, {"schema.registry.urls.allowed": "http://r:8081, https://s"})
    with pytest.raises(InvalidConfigurationError, match=r"'http://169\.254\.169\.254' is not among"):
        create_topic(cluster, "t", configs={"schema.registry.url": "https://s,http://169.254.169.254"})
    create_topic(cluster, "t", configs={"schema.registry.url": "https://s/, http://r:8081"})
    with pytest.raises(InvalidConfigurationError, match=r"schema\.registry\.urls\.allowed"):
        alter_configs(cluster, "t", {"schema.registry.url": "http://other"})
    alter_configs(cluster, "t", {"retention.ms": "1", "schema.registry.url": None})
