"""The simulated rows of the scale benchmark are rows that the log itself reads, continues and lists."""

import pytest
from deltalake import DeltaTable

from benchmarks import scale_rows as simulated
from benchmarks.scale import ONE
from spark_log.cluster.topics import find_topics
from spark_log.groups.membership import ConsumerMembership, MemberSettings
from spark_log.ids import OffsetRange, TopicPartition
from spark_log.log.log import Records
from spark_log.maintenance.client_log import ClientLog
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.tables.publication import delta_tables, publish

pytestmark = pytest.mark.delta

FIRST = TopicPartition("t", 0)


def test_the_log_plans_appends_and_publishes_after_simulated_segments(cluster):
    topic = create_topic(cluster, "t", 2, configs=simulated.CONFIGS)
    simulated.add_published_segments(cluster, topic, 20)
    log = ClientLog(cluster)
    slices = log.plan({FIRST: OffsetRange(1_500, 3_500)}).slices
    assert [(piece.start, piece.end) for piece in slices] == [(1_500, 2_000), (2_000, 3_000), (3_000, 3_500)]
    [outcome] = log.append(topic, [Records(0, ONE)])
    assert outcome.base_offset == 20_000
    log.close()


def test_simulated_topics_are_copies_with_published_tables(cluster):
    topic = create_topic(cluster, "t", 1, configs=simulated.CONFIGS)
    simulated.add_published_segments(cluster, topic, 3)
    simulated.add_topics(cluster, "t", range(1, 3))
    copy = cluster.store.read(find_topics)["t-2"]
    assert ClientLog(cluster).positions(copy) == {TopicPartition("t-2", 0): (0, 3_000)}
    simulated.add_segments(cluster, copy, 1)
    publish(cluster, copy)
    [table] = delta_tables(cluster, copy).values()
    offsets = DeltaTable(table).get_add_actions(flatten=True)["partition.base_offset"].to_pylist()
    assert sorted(offsets) == [0, 1_000, 2_000, 3_000]


def test_a_simulated_member_answers_with_its_partition(cluster):
    topic = create_topic(cluster, "t", 10)
    simulated.add_members(cluster, "g", topic, range(10))
    timeout_ms = simulated.SESSION_TIMEOUT_MS
    member = ConsumerMembership(cluster, "g", MemberSettings("c", "here", None, timeout_ms, timeout_ms), ["range"])
    member.member_id, member.generation = "member-000003", 1
    mine = frozenset([TopicPartition("t", 3)])
    answer = member.heartbeat(["t"], mine)
    assert answer.partitions == mine and answer.complete
