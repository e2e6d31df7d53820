"""Delta tables of topics that were moved between stores: streams of the tables see no record twice."""

import pytest

from spark_log.cluster.topics import find_topic
from spark_log.maintenance import run_tasks
from spark_log.replication.controller.topic_moves import (
    move_topic,
)
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.tables import delta_table
from spark_log.tables.publication import publish
from spark_log.tables.table_changes import TopicTable
from tests.support.table_checks import assert_delta_is_the_log
from tests.support.topics import append_to

MIXED = {"inline.max.bytes": "100", "inline.tail.bytes": "400", "retired.file.retention.ms": "0", "retention.ms": "-1"}
"""Configs with which a topic has both files and blobs."""


@pytest.mark.delta
def test_files_that_are_merged_after_a_move_are_not_new_to_a_stream_of_the_table(stores, way):
    source, target = way
    create_topic(stores, "t", configs=MIXED | {"inline.max.bytes": "0"}, store=source)
    for store in (target, source):
        for text in "abcdef":
            append_to(stores, "t", text)
        move_topic(stores, "t", store)
        moved = stores.store.read(lambda connection: find_topic(connection, "t"))
        publish(stores, moved)
        [report] = run_tasks(stores.of(moved), ["merge"])
        assert report.after.files == 1
        assert_delta_is_the_log(stores.of(moved))


@pytest.mark.delta
@pytest.mark.parametrize("changes_first", [False, True], ids=["as-it-is", "with-other-tombstones"])
def test_a_table_of_an_earlier_release_is_continued_after_a_move(stores, way, monkeypatch, changes_first):
    """Its only application id names the log dir, which has another uuid in each store. The table may first need a
    commit without an application id.
    """
    source, target = way
    create_topic(stores, "t", configs=MIXED | {"inline.max.bytes": "0"}, store=source)
    monkeypatch.setattr(TopicTable, "applications", property(lambda table: (table.table_id,)))
    if changes_first:
        earlier = delta_table._PROPERTIES | {delta_table.TOMBSTONES: delta_table._EARLIER_TOMBSTONES}
        monkeypatch.setattr(delta_table, "_PROPERTIES", earlier)
        monkeypatch.setattr(delta_table, "shorten_tombstones", lambda table: False)
    for text in "abcdef":
        append_to(stores, "t", text)
    move_topic(stores, "t", target)
    monkeypatch.undo()
    moved = stores.store.read(lambda connection: find_topic(connection, "t"))
    publish(stores, moved)
    [report] = run_tasks(stores.of(moved), ["merge"])
    assert report.after.files == 1
    append_to(stores, "t", "g")
    assert_delta_is_the_log(stores.of(moved))
