"""Consumer groups follow their topics: created, enlarged, deleted, and matched by a regular expression."""

from dataclasses import replace
from json import JSONDecodeError
from types import SimpleNamespace
from typing import Any, cast

import pytest

from spark_log.cluster.lease import unfenced
from spark_log.errors import (
    MetadataStoreUnavailableError,
)
from spark_log.groups.assignors import known_assignors
from spark_log.groups.committed_offsets import commit_offsets
from spark_log.groups.consumer import rows, service, topic_patterns
from spark_log.groups.consumer.heartbeat import ConsumerHeartbeat
from spark_log.groups.consumer.reconciliation import groups_of_changed_topics, reconcile_group
from spark_log.groups.identity import Identity
from spark_log.ids import TopicPartition
from spark_log.maintenance.coordinator import periodic_tasks
from spark_log.metadata import tables as t
from spark_log.metadata.connections.writer_queue import is_writing
from spark_log.metadata.sql_columns import CONSUMER_GROUP
from spark_log.replication.controller.topic_operations import add_partitions, create_topic, delete_topic
from tests.support.group_members import LONG_MS, Reader, settle
from tests.support.stores import change


def tp(number, topic="t"):
    return TopicPartition(topic, number)


def test_created_enlarged_and_deleted_topics_are_reassigned(cluster):
    create_topic(cluster, "t", 1)
    a, b = settle(Reader(cluster, ["t", "u"]), Reader(cluster, ["t", "u"]))
    create_topic(cluster, "u", 2)
    assert a.member.keep_alive()
    settle(a, b)
    assert sorted(a.held | b.held) == [tp(0), tp(0, "u"), tp(1, "u")]
    add_partitions(cluster, "t", 4)
    settle(a, b)
    assert len(a.held | b.held) == 6
    delete_topic(cluster, "u")
    settle(a, b)
    assert sorted(a.held | b.held) == [tp(n) for n in range(4)]


def test_a_changed_subscription_is_reassigned(cluster):
    create_topic(cluster, "t", 2)
    create_topic(cluster, "u", 2)
    a, b = settle(Reader(cluster), Reader(cluster))
    a.topics = ["u"]
    settle(a, b)
    assert (a.held, b.held) == ({tp(0, "u"), tp(1, "u")}, {tp(0), tp(1)})
    a.topics = []
    settle(a, b)
    assert a.held == frozenset()


def test_the_coordinator_reconciles_only_groups_whose_topics_have_changed(cluster, monkeypatch):
    reconciled = []

    def noted(store, group_id, *given):
        reconciled.append(group_id)
        return reconcile_group(store, group_id, *given)

    def changed_groups():
        reconciled.clear()
        periodic_tasks._follow_topic_changes(context)
        return list(reconciled)

    monkeypatch.setattr(periodic_tasks, "reconcile_group", noted)
    context = cast(Any, SimpleNamespace(cluster=cluster, fence=unfenced))
    for topic in "abc":
        create_topic(cluster, topic, 1)
        settle(Reader(cluster, [topic, "later"], group=f"of-{topic}"))
    settle(Reader(cluster, ["none"], group="of-none"))
    assert changed_groups() == []
    add_partitions(cluster, "b", 2)
    assert (changed_groups(), changed_groups()) == (["of-b"], [])
    delete_topic(cluster, "c")
    assert (changed_groups(), changed_groups()) == (["of-c"], [])
    create_topic(cluster, "c", 1)
    assert (changed_groups(), changed_groups()) == (["of-c"], [])
    create_topic(cluster, "later", 1)
    assert (changed_groups(), changed_groups()) == (["of-a", "of-b", "of-c"], [])
    for damaged, error in (("damaged", JSONDecodeError), ("[]", AttributeError)):
        change(cluster, t.consumer_group.update().where(CONSUMER_GROUP.group_id == "of-b").values(topics=damaged))
        with pytest.raises(error):
            changed_groups()
        assert reconciled == ["of-b"]


def test_the_coordinator_reads_no_topics_while_no_group_has_members(cluster, monkeypatch):
    create_topic(cluster, "t", 1)
    commit_offsets(cluster.store, "g", {tp(0): 4})
    monkeypatch.delattr(rows, "all_topic_facts")
    assert groups_of_changed_topics(cluster.store) == []


def test_no_writer_waits_while_topics_are_matched_with_a_regular_expression(cluster, monkeypatch):
    create_topic(cluster, "orders-1", 1)
    compiled, writing = topic_patterns.compile_pattern, []

    def compile_pattern(*arguments):
        writing.append(is_writing())
        return compiled(*arguments)

    monkeypatch.setattr(topic_patterns, "compile_pattern", compile_pattern)
    regex = f"orders-.*|{id(cluster)}"  # no other test has it: what it matches is remembered
    first = ConsumerHeartbeat(
        Identity("g", "m", None, "client", "host", LONG_MS), "m", 0, rebalance_timeout_ms=LONG_MS, regex=regex,
        owned=frozenset(),
    )  # fmt: skip
    answer = service.consumer_heartbeat(cluster.store, first, known_assignors())
    assert answer.partitions == {tp(0, "orders-1")}
    create_topic(cluster, "orders-2", 1)
    later = replace(first, epoch=answer.epoch, rebalance_timeout_ms=None, regex=None, owned=answer.partitions)
    answer = service.consumer_heartbeat(cluster.store, later, known_assignors())
    assert answer.partitions == {tp(0, "orders-1"), tp(0, "orders-2")}
    assert writing == [False, False]


def test_a_heartbeat_with_a_regular_expression_is_not_repeated_longer_than_others(cluster, monkeypatch):
    timeouts_ms = {}

    def unavailable(kind):
        def fail(*_, timeout_ms=None, **__):
            timeouts_ms[kind] = timeout_ms
            raise MetadataStoreUnavailableError("no answer")

        return fail

    known = known_assignors()
    monkeypatch.setattr(cluster.store, "read", unavailable("read"))
    monkeypatch.setattr(cluster.store, "transact", unavailable("transact"))
    me = Identity("g", "m", None, "client", "host", LONG_MS)
    for regex in ("orders-.*", None):
        heartbeat = ConsumerHeartbeat(me, "m", 1, names=None if regex else frozenset(), regex=regex)
        with pytest.raises(MetadataStoreUnavailableError):
            service.consumer_heartbeat(cluster.store, heartbeat, known)
    assert timeouts_ms["read"] == timeouts_ms["transact"]
