"""Rewriting: a file replaces segments only while they are still in the log; otherwise nothing changes."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import sqlalchemy as sa

from spark_log.errors import NotCoordinatorError
from spark_log.log.append.write_ids import Writer, release
from spark_log.log.log import Records
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.rewrite import segment_rewrite
from spark_log.maintenance.rewrite.rewrite_plan import plan_rewriting, segments
from spark_log.maintenance.rewrite.segment_rewrite import swap, write
from spark_log.metadata import tables as t
from spark_log.replication.controller.topic_operations import create_topic, delete_topic
from spark_log.tables.publication import publish
from tests.support.records import read_all, table
from tests.support.replicas import take_away
from tests.support.s3 import also_on_s3
from tests.support.stores import count_rows, topics_view
from tests.support.table_checks import assert_delta_is_the_log, assert_replicas_are_whole

pytestmark = [pytest.mark.delta, pytest.mark.on_sqlite, pytest.mark.on_data_store]


class Case:
    """A topic of three files in three replicas, and the rewriting of them into one file."""

    def __init__(self, cluster):
        self.cluster = topics_view(cluster)
        self.log = ClientLog(cluster)
        configs = {"inline.max.bytes": "0", "compression.type": "none"}
        self.topic = create_topic(cluster, "t", 1, 3, configs)
        for values in ("ab", "cd", "ef"):
            self.log.append(self.topic, [Records(0, table(*values))])
        self.writer = Writer(self.cluster.store, "test", 60_000)
        self.inputs = self.cluster.store.read(lambda c: segments(c, self.topic, 0, inline=False))
        self.rewriting = self.cluster.store.read(lambda c: plan_rewriting(c, self.topic, 0, self.inputs))
        self.write_id, self.name = self.writer.file_name()

    def write(self, keep=None):
        self.written = write(self.rewriting, self.name, self.cluster.log_dirs(), self.cluster.log_dir, keep)

    def swap(self, **fence):
        return swap(self.cluster, self.write_id, self.rewriting, self.written, **fence)

    def files(self):
        """The rewritten file in each log dir that answers."""
        found = []
        for info in self.cluster.log_dirs().values():
            log_dir = self.cluster.log_dir(info)
            found += [path for path in log_dir.list_files(self.topic.folder) if self.name in path]
        return found

    def rows(self):
        tables = (t.segment, t.retired_file, t.partition, t.replica)
        with self.cluster.store.snapshot() as connection:
            return [connection.execute(sa.select(each)).all() for each in tables]


@pytest.fixture
def case(three_brokers):
    case = Case(three_brokers)
    yield case
    case.log.close()


@also_on_s3
def test_one_file_replaces_three_in_every_replica(case):
    case.write()
    assert case.swap()
    assert read_all(case.log, case.topic) == [(0, i, value) for i, value in enumerate("abcdef")]
    assert [count_rows(case.cluster.store, table) for table in (t.segment, t.retired_file)] == [1, 3]
    assert_replicas_are_whole(case.cluster)
    publish(case.cluster, case.topic)
    assert_delta_is_the_log(case.cluster)


def test_remaining_records_keep_their_offsets(case):
    case.write(keep=lambda offsets, _records: pc.is_in(offsets, pa.array([1, 2, 5])))
    assert case.swap()
    expected = [(0, 1, "b"), (0, 2, "c"), (0, 5, "f")]
    assert read_all(case.log, case.topic) == expected
    case.log.append(case.topic, [Records(0, table("g"))])
    assert read_all(case.log, case.topic) == [*expected, (0, 6, "g")]
    publish(case.cluster, case.topic)
    assert_delta_is_the_log(case.cluster)


def test_offsets_of_an_empty_rewritten_segment_are_not_used_again(case):
    case.write(keep=lambda offsets, _records: pc.less(offsets, 0))
    assert case.swap()
    assert read_all(case.log, case.topic) == []
    case.log.append(case.topic, [Records(0, table("g"))])
    assert read_all(case.log, case.topic) == [(0, 6, "g")]
    publish(case.cluster, case.topic)
    assert_delta_is_the_log(case.cluster)


def rewrite_first(case):
    """Another process has merged the first two segments."""
    other = case.cluster.store.read(lambda c: plan_rewriting(c, case.topic, 0, case.inputs[:2]))
    write_id, name = case.writer.file_name()
    written = write(other, name, case.cluster.log_dirs(), case.cluster.log_dir)
    assert swap(case.cluster, write_id, other, written)


@pytest.mark.parametrize(
    "meanwhile",
    [
        pytest.param(rewrite_first, id="the inputs are not the log any more"),
        pytest.param(lambda case: take_away(case.cluster, 3), id="the ISR has changed"),
        pytest.param(lambda case: release(case.cluster.store, case.write_id), id="the write id is gone"),
    ],
)
def test_a_late_swap_changes_nothing_and_leaves_no_file(case, meanwhile):
    case.write()
    meanwhile(case)
    before = case.rows()
    assert not case.swap()
    assert case.rows() == before
    assert case.files() == []
    assert read_all(case.log, case.topic) == [(0, i, value) for i, value in enumerate("abcdef")]


def test_a_swap_in_a_deleted_topic_leaves_no_file(case):
    case.write()
    delete_topic(case.cluster.home, "t")
    assert not case.swap()
    assert case.files() == []


def test_a_fence_prevents_the_swap(case):
    def gone(_connection):
        raise NotCoordinatorError("the term has ended")

    case.write()
    before = case.rows()
    with pytest.raises(NotCoordinatorError):
        case.swap(fence=gone)
    assert case.rows() == before


def test_segments_that_are_no_longer_in_the_log_are_not_planned(case):
    case.write()
    assert case.swap()
    assert case.cluster.store.read(lambda c: plan_rewriting(c, case.topic, 0, case.inputs)) is None


@pytest.mark.parametrize(
    ("limit", "rows"), [(None, [7]), ("_TABLE_RECORDS", [3, 3, 1]), ("ROW_GROUP_BYTES", [2, 1, 3, 1])]
)
def test_blobs_are_read_in_tables_of_bounded_size(three_brokers, monkeypatch, limit, rows):
    if limit is not None:
        monkeypatch.setattr(segment_rewrite, limit, 3)
    log, topic = ClientLog(three_brokers), create_topic(three_brokers, "t", 1, 3, {"delta.max.lag.ms": "-1"})
    for values in (["a", "b"], ["c"], ["d", "e", "f"], ["g"]):
        log.append(topic, [Records(0, table(*values))])
    tail = topics_view(three_brokers).store.read(lambda c: segments(c, topic, 0, inline=True))
    rewriting = topics_view(three_brokers).store.read(lambda c: plan_rewriting(c, topic, 0, tail))
    tables = list(segment_rewrite._inline_tables(rewriting.slices))
    assert b"".join(value for each in tables for value in each.column("value").to_pylist()) == b"abcdefg"
    assert [offset for each in tables for offset in each.column("offset").to_pylist()] == list(range(7))
    assert all(column.num_chunks == 1 for each in tables for column in each.columns)
    assert [each.num_rows for each in tables] == rows
    log.close()


def test_files_with_large_records_are_read_in_tables_of_bounded_size(three_brokers, monkeypatch):
    log, topic = ClientLog(three_brokers), create_topic(three_brokers, "t", 1, 3, {"inline.max.bytes": "0"})
    for _ in range(4):
        log.append(topic, [Records(0, table("x" * 1_000, "y" * 1_000))])
    view = topics_view(three_brokers)
    files = view.store.read(lambda c: segments(c, topic, 0, inline=False))
    rewriting = view.store.read(lambda c: plan_rewriting(c, topic, 0, files))
    for limit, rows in [(1, [2, 2, 2, 2]), (1 << 20, [8])]:
        monkeypatch.setattr(segment_rewrite, "ROW_GROUP_BYTES", limit)
        read = list(segment_rewrite.read(rewriting.slices, three_brokers.log_dirs()))
        assert [records.num_rows for _, records in read] == rows
        assert [offset for offsets, _ in read for offset in offsets.to_pylist()] == list(range(8))
    log.close()
