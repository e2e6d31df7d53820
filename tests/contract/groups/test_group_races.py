"""Two transactions of a group, or of a group and one of its topics, at the same time. Only PostgreSQL runs them so."""

import threading
from dataclasses import replace

import pytest
import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.facts.groups import list_groups
from spark_log.groups import committed_offsets
from spark_log.groups.committed_offsets import KEPT, Commit, commit_offsets
from spark_log.groups.group_operations import Latest
from spark_log.groups.offset_expiry import expire_offsets
from spark_log.groups.share import rows
from spark_log.groups.share.administration import alter_group_configs, group_overrides, reset_share_offsets
from spark_log.ids import TopicPartition
from spark_log.metadata import tables as t
from spark_log.replication.controller.topic_operations import delete_topic
from tests.support.share_members import ShareMember
from tests.support.stores import count_rows
from tests.support.topics import make
from tests.support.waiting import wait_until

WAITING = """SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock'"""


@pytest.fixture
def cluster(postgres_server, tmp_path):
    with Cluster.init(postgres_server.create_database(), log_dir=str(tmp_path / "log-dir")) as cluster:
        yield cluster


@pytest.fixture
def meanwhile(cluster, monkeypatch):
    """A function that lets another thread act before the call of a function, until it is done or waits for a lock."""
    threads = []

    def act_before(module, name, action):
        function = getattr(module, name)

        def called(*arguments, **named):
            if not threads:
                threads.append(threading.Thread(target=action))
                threads[0].start()
                wait_until(lambda: not threads[0].is_alive() or cluster.store.read(waiting))
            return function(*arguments, **named)

        monkeypatch.setattr(module, name, called)

    def waiting(connection):
        return connection.execute(sa.text(WAITING)).scalar()

    def wait():
        for thread in threads:
            thread.join(timeout=60)
            assert not thread.is_alive()

    act_before.wait = wait
    yield act_before
    wait()


@pytest.mark.parametrize("begins", ["heartbeat", "reset"])
def test_a_topic_is_deleted_while_a_share_group_begins_to_read_it(cluster, meanwhile, begins):
    """Nothing of the topic stays, so the id is free for another group."""
    make(cluster, "t")
    make(cluster, "u")
    meanwhile(rows, "insert_rows", lambda: delete_topic(cluster, "t"))
    if begins == "heartbeat":
        ShareMember(cluster).leave()
    else:
        reset_share_offsets(cluster, "workers", {TopicPartition("t", 0): Latest()})
    meanwhile.wait()
    assert count_rows(cluster.store, t.share_partition) == 0
    assert commit_offsets(cluster.store, "workers", {TopicPartition("u", 0): 1}) == []


@pytest.mark.parametrize("then", ["a share group", "expiry"])
def test_a_topic_is_deleted_during_a_commit(cluster, meanwhile, then):
    """The committed offset stays without a topic. It does not count."""
    make(cluster, "t")
    make(cluster, "u")
    meanwhile(committed_offsets, "_take_offsets", lambda: delete_topic(cluster, "t"))
    commit_offsets(cluster.store, "workers", {TopicPartition("t", 0): Commit(1, KEPT)})
    meanwhile.wait()
    if then == "a share group":
        assert ShareMember(cluster, ["u"]).assigned
    else:
        settings = replace(cluster.store.settings, offsets_retention_ms=1)
        wait_until(lambda: expire_offsets(cluster.store, settings) or not list_groups(cluster.store))
        assert count_rows(cluster.store, t.group_offset) == 0


def test_a_config_of_a_group_is_set_while_its_last_one_is_reset(cluster, meanwhile):
    count_limit, backoff = "share.delivery.count.limit", "share.retry.backoff.ms"
    alter_group_configs(cluster.store, "workers", {count_limit: "3"})
    meanwhile(rows, "save_configs", lambda: alter_group_configs(cluster.store, "workers", {backoff: "7"}))
    alter_group_configs(cluster.store, "workers", {count_limit: None})
    meanwhile.wait()
    assert group_overrides(cluster.store, "workers") == {backoff: "7"}
