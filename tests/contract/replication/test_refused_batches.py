"""Batches of several clients in one append, of which some are refused because replicas lack records."""

from spark_log.errors import (
    CorruptRecordError,
    NotEnoughReplicasError,
    NotLeaderForPartitionError,
    OutOfOrderSequenceNumberError,
)
from spark_log.log import log as log_module
from spark_log.log.append.producer_rows import register_producer
from spark_log.log.append.rules import Appended
from spark_log.log.append.sequence_rules import ProducerSequence
from spark_log.log.log import Records
from spark_log.maintenance.client_log import ClientLog
from spark_log.metadata import tables as t
from spark_log.replication.controller.fallback_controller import FallbackController
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.replication.replicas import replicated_append
from spark_log.replication.replicas.followers import Followers
from tests.support.records import read_all, table
from tests.support.resources import assert_only_named_files
from tests.support.stores import change
from tests.support.table_checks import assert_replicas_are_whole


def take_offline(cluster, topic):
    """Remove the leader and the ISR of the topic's partitions, so that no replica can be elected."""
    change(cluster, t.partition.update().where(t.partition.c.topic_id == topic.topic_id).values(leader=None))
    change(cluster, t.replica.update().where(t.replica.c.topic_id == topic.topic_id).values(in_sync=False))


def test_a_batch_whose_replica_cannot_catch_up_does_not_delay_the_others(three_brokers, monkeypatch):
    cluster, log = three_brokers, ClientLog(three_brokers)
    slow = create_topic(cluster, "slow", 1, 2, {"inline.max.bytes": "0"})
    quick = create_topic(cluster, "quick")
    producer_id = register_producer(cluster.store, 1_000)
    a, b, c = (Records(0, table(value), ProducerSequence(producer_id, 0, n)) for n, value in enumerate("abc"))
    monkeypatch.setattr(Followers, "appended", lambda *_: None)
    assert log.append(slow, [a], acks=1) == [Appended(0, 1)]
    monkeypatch.setattr(log_module, "_RETRY_MS", 0)
    tries = []

    def fail(*_):
        tries.append(_)
        raise CorruptRecordError("no log dir has a good copy")

    with monkeypatch.context() as patched:
        patched.setattr(replicated_append, "catch_up", fail)
        *refused, appended = log.append_each([(slow, b), (slow, c), (quick, Records(0, table("x")))], timeout_ms=5_000)
    assert appended == Appended(0, 1)
    assert [type(each.error) for each in refused] == [NotEnoughReplicasError, OutOfOrderSequenceNumberError]
    assert len(tries) == 2, "one repetition, of two batches"
    assert_only_named_files(cluster)
    assert log.append_each([(slow, b), (slow, c)]) == [Appended(1, 2), Appended(2, 3)], "the client sends them again"
    assert [value for _, _, value in read_all(log, slow)] == ["a", "b", "c"]
    assert_replicas_are_whole(cluster)
    log.close()


def test_failures_are_detected_once_for_all_partitions_without_a_leader(cluster, log, monkeypatch):
    offline, quick = create_topic(cluster, "offline", 20), create_topic(cluster, "quick")
    take_offline(cluster, offline)
    monkeypatch.setattr(log_module, "_RETRY_MS", 0)
    calls = []
    monkeypatch.setattr(FallbackController, "detect_failures", lambda _: calls.append(1))
    items = [(offline, Records(number, table("x"))) for number in range(20)]
    *refused, appended = log.append_each([*items, (quick, Records(0, table("x")))], timeout_ms=2_000)
    assert appended == Appended(0, 1) and len(calls) == 1
    assert {type(each.error) for each in refused} == {NotLeaderForPartitionError}
