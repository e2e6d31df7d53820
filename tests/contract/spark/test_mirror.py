"""A mirror's target has the records of its source at the same offsets, after any failure."""

import json

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import sqlalchemy as sa

from spark_log import Registry
from spark_log.cluster.cluster import Cluster
from spark_log.errors import (
    DataLossError,
    InvalidOptionError,
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    OffsetOutOfRangeError,
    PolicyViolationError,
    UnknownTopicOrPartitionError,
)
from spark_log.ids import TopicPartition
from spark_log.log.append.transfer import transfer
from spark_log.log.records.schema import read_schema
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.removal.retention import delete_records
from spark_log.metadata import tables as t
from spark_log.replication.controller.topic_operations import add_partitions, create_topic
from spark_log.spark.datasource.options.topic_choice import SubscribePattern, SubscribeTopics
from spark_log.spark.mirror import local_mirror
from tests.support.mirroring import compact, everything, mirror_all, without_spark
from tests.support.python_process import killed_at
from tests.support.records import read_all, read_rows
from tests.support.table_checks import assert_delta_is_the_log, assert_replicas_are_whole
from tests.support.topics import append_to

pytestmark = pytest.mark.on_sqlite


def append(cluster, partition, *values, topic="t", **columns):
    append_to(cluster, topic, *values, partition=partition, **columns)


def ends(cluster, topic="t"):
    """(log start, high watermark) of each partition."""
    log = ClientLog(cluster)
    return [tuple(positions) for positions in log.positions(log.find_topic(topic)).values()]


@pytest.mark.delta
def test_the_target_has_every_record_at_its_offset_and_continues(source, target, mirrors):
    mirror = mirrors(source, target, replication_factor=2)
    steps = mirror_all(mirror)
    assert [step.records for step in steps] == [len(everything(source))]
    assert steps[0].behind == 0
    assert everything(target) == everything(source)
    assert {row["timestampType"] for row in everything(target)} == {0, 1}
    assert ends(target) == ends(source)
    assert ends(target)[2] == (5, 9), "the log starts are equal"
    log = ClientLog(target)
    made = log.find_topic("t")
    assert (made.partition_count, made.replication_factor) == (4, 2)
    assert made.overrides == ClientLog(source).find_topic("t").overrides
    with target.store.snapshot() as connection:
        inline = set(connection.execute(sa.select(t.segment.c.inline)).scalars())
    assert inline == {False, True}, "small batches without gaps are inline again"

    append(source, 3, "the first of all")
    append(source, 0, "more", timestamp_ms=5)
    again = mirrors(source, target)
    assert again.step(without_spark).records == 2
    assert again.step(without_spark) is None
    assert everything(target) == everything(source)
    log.seal(made, range(4))
    assert everything(target) == everything(source)
    assert_replicas_are_whole(target)
    assert_delta_is_the_log(target)
    log.close()


def test_a_limited_step_ends_at_any_offset_and_the_next_one_continues(source, target, mirrors):
    mirror = mirrors(source, target, offsets_per_step_max=37)
    steps = mirror_all(mirror)
    assert len(steps) > 5
    assert sum(step.records for step in steps) == len(everything(source))
    assert [step.behind > 0 for step in steps] == [True] * (len(steps) - 1) + [False]
    assert everything(target) == everything(source)
    until = {TopicPartition("t", 0): ends(source)[0][1]}
    append(source, 0, "beyond until")
    assert mirror.step(without_spark, until) is None


def test_a_mirror_in_this_process_ends_although_records_come_meanwhile(source, target, monkeypatch):
    for value in "01":
        append(source, 0, value)
    records = len(everything(source))

    def transfer_while_records_come(task):
        assert len(everything(source)) < records + 50, "the mirror does not end"
        append(source, 0, "2")
        return transfer(task)

    monkeypatch.setattr(local_mirror, "transfer", transfer_while_records_come)
    assert local_mirror.mirror_topics(source, target, "t") == records
    assert everything(target) == [row for row in everything(source) if row["value"] != b"2"]
    monkeypatch.undo()
    local_mirror.mirror_topics(source, target, "t")
    assert everything(target) == everything(source)


def test_records_of_another_writer_in_the_target_are_an_error(source, target, mirrors):
    mirror = mirrors(source, target)
    mirror_all(mirror)
    append(target, 3, "foreign")
    with pytest.raises(OffsetOutOfRangeError, match=r"t-3: something else has written the offsets \[0, 1\)"):
        mirror.step(without_spark)
    with pytest.raises(OffsetOutOfRangeError, match=r"t-3: something else has written the offsets \[0, 1\)"):
        mirrors(source, target).step(without_spark)
    with target.store.engine.begin() as connection:  # as older versions of spark-log left it
        connection.execute(t.mirror_position.delete())
    with pytest.raises(OffsetOutOfRangeError, match="t-3: the target's log ends at 1, beyond the source's high water"):
        mirrors(source, target).step(without_spark)
    append(source, 3, "one", "two")
    with pytest.raises(OffsetOutOfRangeError, match="t-3: the record at offset 0 of the target is not the source's"):
        mirrors(source, target).step(without_spark)


def test_an_append_by_another_writer_during_a_step_makes_the_whole_step_fail(source, target, mirrors):
    def slow(transfers):
        done = without_spark(transfers)
        append(target, 3, "foreign")
        return done

    append(source, 3, "one", "two")
    mirror = mirrors(source, target)
    mirror.topics.pairs()
    before = everything(target)
    with pytest.raises(OffsetOutOfRangeError, match=r"'t': partition 3: the records with the offsets \[0, 2\) cannot"):
        mirror.step(slow)
    assert before == []
    assert [row["value"] for row in everything(target)] == [b"foreign"], "all partitions or none"
    with target.store.snapshot() as connection:
        ids = connection.execute(sa.select(t.write_id.c.holder)).scalars().all()
    assert "mirror" not in ids, "the write id is released; clean-up deletes the files"


def test_records_deleted_in_the_source_before_they_were_copied_are_data_loss(source, target, mirrors):
    mirror = mirrors(source, target, offsets_per_step_max=60)
    mirror.step(without_spark)
    (_, end), *_ = ends(target)
    delete_records(source, {TopicPartition("t", 0): end + 7})
    with pytest.raises(DataLossError, match=rf"t-0: the records with the offsets \[{end}, {end + 7}\) are gone"):
        mirror.step(without_spark)
    mirror_all(mirrors(source, target, allow_data_loss=True))
    kept = [row for row in everything(source) if row["partition"] == 0]
    assert [row for row in everything(target) if row["partition"] == 0 and row["offset"] >= end] == kept
    assert ends(target)[0] == (0, ends(source)[0][1])


@pytest.mark.parametrize("allowed", [False, True])
def test_records_deleted_in_the_source_during_a_step_are_data_loss(source, target, mirrors, monkeypatch, allowed):
    mirror = mirrors(source, target, offsets_per_step_max=60, allow_data_loss=allowed)
    mirror.step(without_spark)
    (_, end), *_ = before = ends(target)
    transfers = mirror._transfers

    def after_retention(*arguments):
        delete_records(source, {TopicPartition("t", 0): end + 7})
        return transfers(*arguments)

    monkeypatch.setattr(mirror, "_transfers", after_retention)
    if allowed:
        assert mirror.step(without_spark) is not None
        return
    with pytest.raises(DataLossError, match=rf"t-0: the records with the offsets \[{end}, {end + 7}\) are gone"):
        mirror.step(without_spark)
    assert ends(target) == before


def test_a_target_without_records_begins_where_the_source_does_after_a_deletion(source, target, mirrors, monkeypatch):
    mirror = mirrors(source, target)
    transfers = mirror._transfers

    def after_retention(*arguments):
        delete_records(source, {TopicPartition("t", 0): 7})
        return transfers(*arguments)

    monkeypatch.setattr(mirror, "_transfers", after_retention)
    mirror_all(mirror)
    assert everything(target) == everything(source)


def test_source_and_target_may_be_compacted_independently(source, target, mirrors):
    mirror = mirrors(source, target)
    mirror_all(mirror)
    topic = ClientLog(target).find_topic("t")
    compact(target, topic, 1, lambda offsets: pc.is_in(offsets, pa.array([57, 120])))
    append(source, 1, "later", key=b"k")
    mirror_all(mirrors(source, target))
    theirs = [row for row in everything(source) if row["partition"] == 1]
    ours = [row for row in everything(target) if row["partition"] == 1]
    assert [row["offset"] for row in ours] == [57, 120, 121]
    assert ours == [row for row in theirs if row["offset"] in (57, 120, 121)]


def test_columns_that_follow_a_subject_are_those_of_the_source(source, target, mirrors):
    registry, schemas = Registry(source), []
    for fields in (["a"], ["a", "b"]):
        schemas.append(json.dumps({"type": "record", "name": "R", "fields": [
            {"name": name, "type": ["null", "string"], "default": None} for name in fields]}))  # fmt: skip
    registry.register("s", schemas[0])
    configs = {"value.format": "avro", "value.framing": "confluent", "value.schema": "registry:s"}
    configs |= {"key.format": "json", "key.schema": "n INT", "key.columns": "n"}
    create_topic(source, "typed", configs={**configs, "retention.ms": "-1"})
    mirror = mirrors(source, target, SubscribeTopics(("typed",)))
    append(source, 0, "\0\0\0\0\1\2\2x", topic="typed", key=b'{"n": 1}')
    mirror_all(mirror)
    assert Registry(target).subjects() == []
    registry.register("s", schemas[1])
    append(source, 0, "\0\0\0\0\2\2\2x\2\2y", topic="typed")
    mirror_all(mirror)
    log = ClientLog(target)
    topic = log.find_topic("typed")
    schema = read_schema(columns=["key_record", "record_error", "record"], typed=topic.columns.fields)
    rows = read_rows(log, topic, schema)
    assert rows == [
        {"key_record": {"n": 1}, "record_error": None, "record": {"a": "x", "b": None}},
        {"key_record": None, "record_error": None, "record": {"a": "x", "b": "y"}},
    ]  # fmt: skip
    mirror_all(mirror)
    assert log.find_topic("typed").typed_columns == topic.typed_columns
    log.close()


def test_new_topics_that_match_a_pattern_are_mirrored_with_a_prefix(source, target, mirrors):
    create_topic(source, "t2")
    append(source, 0, "a", topic="t2")
    mirror = mirrors(source, target, SubscribePattern("^t"), prefix="eu.")
    mirror_all(mirror)
    create_topic(source, "t3")
    append(source, 0, "b", topic="t3")
    add_partitions(source, "t2", 2)
    append(source, 1, "c", topic="t2")
    mirror_all(mirror)
    log = ClientLog(target)
    assert read_all(log, log.find_topic("eu.t2")) == [(0, 0, "a"), (1, 0, "c")]
    assert read_all(log, log.find_topic("eu.t3")) == [(0, 0, "b")]
    assert everything(target, "eu.t") == everything(source)


def test_invalid_mirrors_are_refused_before_anything_is_written(source, target, mirrors):
    with pytest.raises(UnknownTopicOrPartitionError, match="'nope': unknown topic or partition, in the source"):
        mirrors(source, target, SubscribeTopics(("nope",))).topics.pairs()
    with pytest.raises(UnknownTopicOrPartitionError, match=r"'t': unknown .* in the target .--create-topics makes it"):
        mirrors(source, target, create=False).topics.pairs()
    with pytest.raises(InvalidReplicationFactorError):
        mirrors(source, target, replication_factor=3).topics.pairs()
    with pytest.raises(PolicyViolationError, match="__consumer_offsets"):
        mirrors(source, target, SubscribeTopics(("__consumer_offsets",))).topics.pairs()
    with pytest.raises(InvalidOptionError, match="the same cluster"):
        mirrors(source, source)
    create_topic(target, "t", 5)
    with pytest.raises(InvalidPartitionsError, match="'t' has 5 in the target and 4 in the source"):
        mirrors(source, target).topics.pairs()


def test_data_loss_is_detected_in_a_target_that_retention_has_emptied(source, target, mirrors):
    for number in range(4):
        append(source, 3, f"{number}")
    mirror = mirrors(source, target)
    mirror_all(mirror)
    delete_records(target, {TopicPartition("t", 3): 4})
    append(source, 3, "4")
    append(source, 3, "5")
    delete_records(source, {TopicPartition("t", 3): 5})
    for each in (mirror, mirrors(source, target)):
        with pytest.raises(DataLossError, match=r"t-3: the records with the offsets \[4, 5\) are gone"):
            each.step(without_spark)
    mirror_all(mirrors(source, target, allow_data_loss=True))
    assert [(row["offset"], row["value"]) for row in everything(target) if row["partition"] == 3] == [(5, b"5")]


@pytest.mark.delta
@pytest.mark.parametrize("point", ["mirror.files-written:2", "append.committed:2"])
def test_a_killed_mirror_continues_without_duplicates(point, source, tmp_path, mirrors):
    """On SQLite only: a SIGKILL affects both stores in the same way here (see test_crashes)."""
    with Cluster.init(str(tmp_path / "target")) as target:
        arguments = [str(tmp_path / "source"), str(tmp_path / "target"), "60"]
        killed_at(point, "-m", "tests.support.mirroring", *arguments)
        expected = everything(source)
        copied = everything(target)
        assert 0 < len(copied) < len(expected)
        assert all(row in expected for row in copied)
        mirror_all(mirrors(source, target))
        assert everything(target) == expected
        assert ends(target) == ends(source)
        assert_delta_is_the_log(target)
