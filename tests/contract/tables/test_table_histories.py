"""All tables of a topic over random histories: their readers see the records of the log at the tables' offsets."""

import json
import os
import tempfile
from contextlib import ExitStack
from unittest import mock

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.settings import alter_settings
from spark_log.ids import TopicPartition
from spark_log.log.append.write_ids import Writer
from spark_log.log.log import Records
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.erase.erase import erase
from spark_log.maintenance.removal.retention import delete_records
from spark_log.maintenance.rewrite.tail_seal import seal
from spark_log.maintenance.task_list import run_tasks
from spark_log.replication.controller.topic_operations import alter_configs
from spark_log.tables import unopened_publication
from spark_log.tables.current import open_current, vector_changes
from spark_log.tables.current.cut import NO_CUTS, cuts
from spark_log.tables.publication import publish_all
from tests.support.records import keyed
from tests.support.table_checks import assert_current, assert_files, ends_of
from tests.support.topics import make

pytestmark = pytest.mark.delta

SCHEMAS = ("a BIGINT", "a BIGINT, b STRING", "b STRING, c STRUCT<d: DOUBLE>")
VALUES = [None, b"", b"1", b'{"a": 1}', b'{"a": 2, "b": "x", "c": {"d": 0.5}}']

CONFIGS = {
    "delta_max_lag_ms": "-1",
    "retention_ms": "-1",
    "min_cleanable_dirty_ratio": "0",
    "delete_retention_ms": "0",
    "table_formats": "delta,iceberg",
    "table_current": "delta",
    "value_format": "json",
    "value_schema": SCHEMAS[0],
}
EXAMPLES = int(os.environ.get("SPARK_LOG_TEST_EXAMPLES", "8"))
"""A search by hand takes more."""
KEYS = st.sampled_from([None, b"", b"a", b"b", b"c", b"d"])
"""None becomes b"x" in a compacted topic, which needs keys."""
RECORDS = st.lists(st.tuples(KEYS, st.sampled_from(VALUES)), min_size=1, max_size=6)
EVENTS = st.lists(
    st.tuples(KEYS, st.sampled_from([*VALUES[:3], "c", "u", "d"]), st.sampled_from([None, 1, 2, 3, 4])),
    min_size=1,
    max_size=6,
)
"""Values, or the ops of events with their sequences. Events are often repeated, and come too late."""


def event(op, sequence):
    """An event of Debezium with some op; other values as they are."""
    if not isinstance(op, str):
        return op
    before, after = (None, {"a": sequence}) if op != "d" else ({"a": sequence}, None)
    return json.dumps({"op": op, "before": before, "after": after, "source": {"lsn": sequence}}).encode()


class Histories(RuleBasedStateMachine):
    """Every append writes the same number of records to each partition: a cut that divides an append would show it."""

    @initialize(
        compacts=st.booleans(),
        inline=st.booleans(),
        rows_at_once=st.sampled_from([1, 3, 1000]),
        cache=st.sampled_from([1, 2**20]),
        order=st.sampled_from([None, "offset", "sequence"]),
    )
    def begin(self, compacts, inline, rows_at_once, cache, order):
        """With an order, the values are events."""
        self.left = ExitStack()
        folder = self.left.enter_context(tempfile.TemporaryDirectory())
        self.left.enter_context(mock.patch.object(vector_changes, "_ROWS_AT_ONCE", rows_at_once))
        # only the rules publish
        self.left.enter_context(mock.patch("spark_log.maintenance.rewrite.table_loop.try_publish", return_value=True))
        self.cluster = self.left.enter_context(Cluster.init(f"{folder}/c"))
        alter_settings(self.cluster, {"table.current.cache.bytes": str(cache)})
        policy, inline_bytes = "compact,delete" if compacts else "delete", "65536" if inline else "0"
        events = {"value_envelope": "debezium", "table_current_order": order} if order else {}
        self.events = bool(events)
        self.topic = make(
            self.cluster, "t", 2, **CONFIGS, **events, cleanup_policy=policy, inline_max_bytes=inline_bytes
        )
        self.compacts = compacts
        self.log = ClientLog(self.cluster)
        self.left.callback(self.log.close)
        self.writer = Writer(self.cluster.store, "test", 60_000)
        self.cut = NO_CUTS
        self.compacted = False

    @rule(records=RECORDS)
    def append(self, records):
        rows = [(b"x" if key is None and self.compacts else key, value) for key, value in records]
        self.log.append(self.topic, [Records(partition, keyed(rows)) for partition in (0, 1)])

    @rule(events=EVENTS)
    @precondition(lambda self: self.events)
    def append_events(self, events):
        self.append([(key, event(op, sequence)) for key, op, sequence in events])

    @rule(order=st.sampled_from(["offset", "sequence"]))
    @precondition(lambda self: self.events)
    def change_order(self, order):
        self.topic = alter_configs(self.cluster, "t", {"table.current.order": order})

    @rule()
    def take_cut(self):
        self.cut = self.cluster.store.read(lambda connection: cuts(connection, [self.topic.topic_id]))

    @rule(sealed=RECORDS, inline=RECORDS)
    def append_beside_a_publication(self, sealed, inline):
        """Files cross the cut, and records are inline when the table is published."""
        self.take_cut()
        self.append(sealed)
        for partition in (0, 1):
            seal(self.cluster, self.writer, self.topic, partition)
        self.append(inline)
        self.publish()

    @rule(partitions=st.sets(st.sampled_from([0, 1]), min_size=1))
    def seal(self, partitions):
        for partition in sorted(partitions):
            seal(self.cluster, self.writer, self.topic, partition)

    @rule(task=st.sampled_from(["merge", "compact", "delta", "retention"]))
    def maintain(self, task):
        self.compacted |= task == "compact"
        list(run_tasks(self.cluster, [task], now=True))

    @rule(schema=st.sampled_from(SCHEMAS))
    def change_schema(self, schema):
        self.topic = alter_configs(self.cluster, "t", {"value.schema": schema})

    @rule(key=KEYS.filter(bool))
    def erase(self, key):
        erase(self.cluster, "t", [key])

    @rule()
    def publisher_dies_after_its_commits(self):
        with mock.patch("spark_log.tables.publication_intent.settle", side_effect=OSError("killed")):
            publish_all(self.cluster, [self.topic], cuts=self.cut, eager=True)
        self.restart()

    @rule()
    def restart(self):
        open_current._opened.clear()
        unopened_publication.opened.clear()

    @rule(data=st.data())
    @precondition(lambda self: not self.compacted)
    def delete_whole_files(self, data):
        """A table shows the records of a file of which only the first ones were deleted, so all of them are."""
        (start, end) = self.log.positions(self.topic)[TopicPartition("t", 0)]
        if end > start and data.draw(st.booleans()):
            delete_records(self.cluster, {TopicPartition("t", 0): end})

    @rule()
    def publish(self):
        published = publish_all(self.cluster, [self.topic], cuts=self.cut, eager=True)[self.topic.topic_id]
        assert published.error is None
        ends = ends_of(self.cluster, self.topic)
        assert len(set(ends.values())) <= 1, f"an append is divided: {ends}"
        assert_current(self.cluster, self.topic)
        assert_files(self.cluster, self.topic)

    @rule()
    def publish_all_records(self):
        for partition in (0, 1):
            seal(self.cluster, self.writer, self.topic, partition)
        self.publish()
        ends = [end for _, end in self.log.positions(self.topic).values()]
        assert ends_of(self.cluster, self.topic) in ({0: ends[0], 1: ends[1]}, {} if ends == [0, 0] else None)

    def teardown(self):
        if hasattr(self, "left"):
            self.left.close()


@pytest.mark.slow
def test_the_readers_see_the_fold_over_the_log():
    run_state_machine_as_test(
        Histories,
        settings=settings(
            max_examples=EXAMPLES, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
