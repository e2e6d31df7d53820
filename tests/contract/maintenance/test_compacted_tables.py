"""Compaction of topics with Delta tables: streams of a table see each record once."""

import pytest
import sqlalchemy as sa

from spark_log.config import ClusterSettings
from spark_log.log.append.write_ids import Writer
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.compaction import local_compaction as task
from spark_log.maintenance.compaction import passes as compaction_passes
from spark_log.maintenance.compaction.passes import find_due, plan_pass, read_passes
from spark_log.maintenance.context import MaintenanceContext
from spark_log.maintenance.rewrite.rewrite_plan import segments
from spark_log.metadata import tables as t
from spark_log.replication.controller.topic_operations import alter_configs
from spark_log.replication.replicas.followers import Followers
from spark_log.tables import publication
from spark_log.tables.seen_offsets import listed_above_tail
from tests.support.compaction_model import append_keyed, readable
from tests.support.replicas import bring_back, take_away, topic_on
from tests.support.stores import topics_view
from tests.support.table_checks import assert_delta_is_the_log, assert_replicas_are_whole
from tests.support.topics import make

pytestmark = [pytest.mark.on_sqlite, pytest.mark.on_data_store]


FILES = {"inline_max_bytes": "0", "segment_bytes": "14"}
"""Each append is a file, and each file is a compaction unit of its own."""


def work_on(cluster, **settings):
    view = topics_view(cluster)
    return MaintenanceContext(view, ClusterSettings(**settings), Writer(view.store, "test", 60_000))


def compact(cluster, *, force=True, **settings):
    return list(task.compact(work_on(cluster, **settings), force=force))


def passes(cluster, topic, partition=0):
    return topics_view(cluster).store.read(lambda connection: read_passes(connection, (topic.topic_id, partition)))


@pytest.mark.delta
def test_no_file_spans_the_end_of_the_published_offsets(local, local_log):
    """A stream of the Delta table would see such a file as old and new data at once."""
    topic = make(local, "t", cleanup_policy="compact", inline_max_bytes="0")
    append_keyed(local_log, topic, "a1 b1", "a2 c1", "a3 c2")
    seen = t.publication_cursor.update().values(seen_offset=4, high_watermark=4)
    local.store.transact(lambda connection: connection.execute(seen))
    compact(local)
    files = local.store.read(lambda c: segments(c, topic, 0, inline=False))
    assert [(file.base_offset, file.end_offset) for file in files] == [(0, 4), (4, 6)]
    assert readable(local_log, topic) == "1:b1 4:a3 5:c2"


@pytest.mark.delta
def test_a_pass_skips_the_files_that_an_offline_table_lists_above_a_tail(local, local_log, monkeypatch):
    """It listed them before it went offline: streams of the table would read them again. The pass drops records above
    them, but tombstones there have to wait, since the skipped files may have earlier records of their keys.
    """
    topic = make(local, "t", cleanup_policy="compact", delete_retention_ms="0", inline_max_bytes="0")
    append_keyed(local_log, topic, "a1 b1", "a2 c1", "a3 c2")
    away, in_table_there = t.log_dir.c.log_dir_id == 99, t.publication_cursor.c.log_dir_id == 99

    def list_elsewhere(connection):
        """The table of a log dir that is offline has the last two files, above a tail."""
        for table, values in (
            (t.log_dir, {"uri": "file:///away", "uuid": "u", "online": False}),
            (t.publication_cursor, {"high_watermark": 6, "seen_offset": 2}),
        ):
            [row] = connection.execute(sa.select(table)).all()
            connection.execute(table.insert().values(row._asdict() | values | {"log_dir_id": 99}))

    def shape():
        files = local.store.read(lambda c: segments(c, topic, 0, inline=False))
        return [(file.base_offset, file.end_offset, file.record_count) for file in files]

    local.store.transact(list_elsewhere)
    published = []
    monkeypatch.setattr(publication, "try_publish", lambda *_, **__: published.append(1))
    compact(local)
    assert shape() == [(0, 2, 2), (2, 4, 2), (4, 6, 2)]
    assert find_due(work_on(local), topic, 0) is None, "nothing more can be done"
    append_keyed(local_log, topic, "a4 b2", "-b c3")
    compact(local, force=False)
    assert readable(local_log, topic) == "2:a2 3:c1 4:a3 5:c2 6:a4 8:-b 9:c3"
    assert shape() == [(0, 2, 0), (2, 4, 2), (4, 6, 2), (6, 10, 3)]
    assert [each.end_offset for each in passes(local, topic)] == [2]
    assert find_due(work_on(local), topic, 0) is None, "nothing more can be done"
    compact(local)
    assert readable(local_log, topic).endswith("8:-b 9:c3")
    assert published == [], "the table of an offline log dir cannot be published"
    monkeypatch.undo()
    local.store.transact(lambda connection: connection.execute(t.publication_cursor.delete().where(in_table_there)))
    local.store.transact(lambda connection: connection.execute(t.log_dir.delete().where(away)))
    compact(local, force=False)
    assert readable(local_log, topic) == "6:a4 8:-b 9:c3"
    assert [each.end_offset for each in passes(local, topic)] == [2, 10]
    compact(local)
    assert readable(local_log, topic) == "6:a4 9:c3"
    assert_delta_is_the_log(local)


@pytest.mark.delta
def test_a_log_dir_that_returns_lists_what_was_compacted_above_its_files(three_brokers):
    cluster = three_brokers
    log = ClientLog(cluster)
    configs = {"cleanup_policy": "compact", "delta_max_lag_ms": "-1", "retention_ms": "-1"}
    topic = topic_on(cluster, "t", [[1, 2, 3]], inline_max_bytes="1000", **configs)
    append_keyed(log, topic, "a1 b1")
    topic = alter_configs(cluster, "t", {"inline.max.bytes": "0"})
    append_keyed(log, topic, "a2 c1")
    take_away(cluster, 3)
    append_keyed(log, topic, "a3 b2", "a4 b3")
    compact(cluster)
    assert readable(log, topic) == "0:a1 1:b1 2:a2 3:c1 6:a4 7:b3"
    bring_back(cluster, 3)
    followers = Followers(topics_view(cluster))
    followers.drain(30)
    followers.close()
    compact(cluster)
    assert readable(log, topic) == "3:c1 6:a4 7:b3"
    append_keyed(log, topic, "d1")
    assert_replicas_are_whole(cluster)
    assert_delta_is_the_log(cluster)
    log.close()


@pytest.mark.delta
def test_a_pass_seals_tails_below_files_and_covers_both(local, local_log):
    make(local, "t", cleanup_policy="compact", delta_max_lag_ms="-1", retention_ms="-1")
    for inline_max_bytes, batch in (("1000", "a1 b1"), ("0", "a2 c1"), ("1000", "c2"), ("0", "b2 d1")):
        append_keyed(local_log, alter_configs(local, "t", {"inline.max.bytes": inline_max_bytes}), batch)
    topic = local_log.find_topic("t")
    assert local.store.read(lambda c: listed_above_tail(c, topic, 0)) == [(0, 7)]
    compact(local)
    assert [each.end_offset for each in passes(local, topic)] == [7]
    assert readable(local_log, topic) == "2:a2 4:c2 5:b2 6:d1"
    assert_delta_is_the_log(local)


@pytest.mark.delta
def test_a_pass_that_waits_for_a_publication_is_not_repeated_meanwhile(local, local_log, monkeypatch):
    topic = make(local, "t", cleanup_policy="compact", delta_max_lag_ms="-1", retention_ms="-1", **FILES)
    append_keyed(local_log, topic, "a1 a2")
    compact(local, force=False)
    assert passes(local, topic)[-1].end_offset == 2
    append_keyed(local_log, alter_configs(local, "t", {"inline.max.bytes": "1000"}), "b1 b2")
    append_keyed(local_log, alter_configs(local, "t", {"inline.max.bytes": "0"}), "c1 c2 c3 c4")
    with monkeypatch.context() as publications_fail:
        publications_fail.setattr(compaction_passes, "publish_above_tails", lambda *_: None)
        due = find_due(work_on(local), topic, 0)
        assert due is not None and due.end_offset == 8
        assert plan_pass(work_on(local), due) is None
    compact(local, force=False)
    assert passes(local, topic)[-1].end_offset == 8
    assert readable(local_log, topic) == "1:a2 3:b2 7:c4"
