"""The parts of jobs that need no Spark: what they do after their query."""

import pytest

from spark_log.groups.committed_offsets import committed, committed_offsets
from spark_log.ids import TopicPartition
from spark_log.replication.controller.topic_operations import delete_topic
from spark_log.spark.jobs.consume import JOB as CONSUME
from spark_log.spark.jobs.queries.consume_query import check, commit_batch
from spark_log.spark.jobs.queries.produce_query import after_write
from tests.support.data_source import address_of
from tests.support.share_members import ShareMember
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


def consume(cluster, *line):
    return CONSUME.parse(["--cluster", address_of(cluster), "--subscribe", "t", *line])


def test_consume_commits_the_end_offsets_of_a_batch_to_its_group(cluster, log):
    topic = make(cluster, "t", 2)
    for text in ("a", "b"):
        append(log, "t", text)
    given = consume(cluster, "--parquet", "unused", "--group-id", "g", "--starting-offsets", "committed")
    ranges, commits = check(given)
    append(log, "t", "after the plan")
    commit_batch(given, commits, all_read=True)
    assert ranges == {T0: (0, 2)}
    assert committed_offsets(cluster.store, "g") == {T0: 2, TopicPartition("t", 1): 0}
    assert {found.leader_epoch for found in committed(cluster.store, "g").values()} == {0}
    assert {commit.topic_id for commit in commits.values()} == {topic.topic_id}
    assert check(given)[0] == {T0: (2, 3)}, "the next batch continues there"


def test_consume_warns_of_end_offsets_that_it_does_not_commit(cluster, log, caplog):
    make(cluster, "t")
    append(log, "t", "a")
    shown = consume(cluster, "--limit", "1", "--group-id", "g")
    commit_batch(shown, check(shown)[1], all_read=False)
    ignoring = consume(cluster, "--parquet", "unused", "--mode", "ignore", "--group-id", "g")
    commit_batch(ignoring, check(ignoring)[1], all_read=True)
    with_share_group = consume(cluster, "--limit", "9", "--group-id", "s")
    ShareMember(cluster, group="s")
    commit_batch(with_share_group, check(with_share_group)[1], all_read=True)
    commits = check(shown)[1]
    delete_topic(cluster, "t")
    commit_batch(shown, commits, all_read=True)
    commit_batch(consume(cluster), commits, all_read=True)
    assert [text.split("not committed: ")[1].split(":")[0] for text in caplog.messages] == [
        "the console does not show all records",
        "--mode ignore writes nothing to a folder that exists",
        "Group s is not a consumer group.",
        "deleted since",
    ]
    assert committed_offsets(cluster.store, "g") == {}
