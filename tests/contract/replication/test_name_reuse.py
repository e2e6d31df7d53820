"""A state machine that deletes and recreates a topic before any store access of any call of the Python clients.

Every record has a serial number, and the machine knows its incarnation of the topic and its offset. Positions and
commits of an earlier incarnation must not affect the current one.
"""

from collections import defaultdict
from contextlib import contextmanager, suppress
from tempfile import TemporaryDirectory
from threading import current_thread

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from kafka.structs import OffsetAndMetadata, TopicPartition

from spark_log import Consumer, Producer
from spark_log.cluster.cluster import Cluster
from spark_log.errors import IllegalArgumentError, RetriableError, UnknownTopicOrPartitionError
from spark_log.facts.groups import group_lag
from spark_log.groups.committed_offsets import committed_offsets
from spark_log.groups.group_operations import Earliest, Latest, ShiftBy, reset_offsets
from spark_log.log.log import Records
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.rewrite import table_loop
from spark_log.metadata.store import Store
from spark_log.replication.controller.topic_operations import create_topic, delete_topic
from tests.support.records import read_all, table

P0 = TopicPartition("t", 0)
GAPS = st.sampled_from([None, 0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12])
"""Number of the store access of the call before which the topic is recreated."""


class NameReuse(RuleBasedStateMachine):
    @initialize()
    def begin(self):
        self.folder = TemporaryDirectory(prefix="name-reuse-")
        self.address = f"{self.folder.name}/cluster"
        self.cluster = Cluster.init(self.address)
        self.log = ClientLog(self.cluster)
        self.serial = 0
        self.incarnation = 0
        self.ids = {}
        self.contents = defaultdict(list)
        self.committed = {}
        self.reset_to = {}
        self.results = 0
        self.create("out")
        self.create("t")
        self.append(4)
        self.consumer = None
        self.producer = Producer(
            cluster=self.address, transactional_id="x", delivery_timeout_ms=5000, request_timeout_ms=4000
        )
        self.plain = Producer(cluster=self.address, delivery_timeout_ms=5000, request_timeout_ms=4000)
        self.producer.init_transactions()
        self.start_consumer()

    def teardown(self):
        if self.consumer is not None:
            self.consumer.close(autocommit=False)
        self.producer.close(timeout=5)
        self.plain.close(timeout=5)
        self.log.close()
        self.cluster.close()
        self.folder.cleanup()

    # --- changes of the log and the clients ---------------------------------------------------------------------

    def create(self, name):
        topic = create_topic(self.cluster, name)
        if name == "t":
            self.ids[topic.topic_id] = self.incarnation

    def append(self, count):
        values = [str(self.serial + n) for n in range(count)]
        self.log.append(self.log.find_topic("t"), [Records(0, table(*values))])
        self.serial += count
        self.contents[self.incarnation] += map(int, values)

    def recreate(self):
        delete_topic(self.cluster, "t")
        self.incarnation += 1
        self.create("t")
        self.append(2)

    @contextmanager
    def recreated_before(self, access):
        """The topic is recreated before the clients' `access`-th access to the store.

        Only work that the caller waits for counts, or the topic would change while the machine looks at it: the
        consumer sends no heartbeat of its own within a run, and the table loop of a producer is left out.
        """
        left = [access]
        real = {name: getattr(Store, name) for name in ("read", "transact", "snapshot")}

        def counted(name):
            def call(store, *args, **kwargs):
                awaited = current_thread().name != table_loop.THREAD_NAME
                if awaited and store is not self.cluster.store and left[0] is not None:
                    due, left[0] = left[0] == 0, left[0] - 1
                    if due:
                        left[0] = None
                        self.recreate()
                return real[name](store, *args, **kwargs)

            return call

        for name in real:
            setattr(Store, name, counted(name))
        try:
            yield
        finally:
            for name, method in real.items():
                setattr(Store, name, method)

    def start_consumer(self):
        self.consumer = Consumer(
            "t", cluster=self.address, group_id="g", auto_offset_reset="earliest", auto_commit_interval_ms=3_600_000,
            allow_auto_create_topics=False, session_timeout_ms=1_800_000, heartbeat_interval_ms=600_000,
        )  # fmt: skip
        self.next = {}
        """The consumer's next offset in each incarnation that it has read."""
        while self.position() is None:
            self.read(1)

    def read(self, rows):
        for record in (record for found in self.consumer.poll(0, rows).values() for record in found):
            [where] = [i for i, serials in self.contents.items() if int(record.value) in serials]
            offset = self.contents[where].index(int(record.value))
            assert record.offset == offset == self.next.get(where, self.committed.get(where) or 0)
            self.next[where] = offset + 1

    def position(self):
        """The consumer's position as (incarnation, offset); None before it has one."""
        state = self.consumer._subscription.partitions.get(P0)
        if state is None or state.offset is None or state.topic_id is None:
            return None
        return self.ids[state.topic_id], state.offset

    # --- calls of the clients -------------------------------------------------------------------------------------

    @rule(gap=GAPS, rows=st.sampled_from([1, 500]))
    def poll(self, gap, rows):
        with self.recreated_before(gap):
            self.read(rows)
            self.read(rows)

    @rule(gap=GAPS, given=st.booleans(), later=st.booleans())
    def commit(self, gap, given, later):
        at = self.position()
        offsets = {P0: OffsetAndMetadata(at[1], "", -1)} if given else None
        with self.recreated_before(gap), suppress(UnknownTopicOrPartitionError):
            if later:
                future = self.consumer.commit_async(offsets)
                self.consumer._background.run(lambda: None, 10)
                if future.failed():
                    raise future.exception
            else:
                self.consumer.commit(offsets)
            self.committed[at[0]] = at[1]

    @rule(gap=GAPS)
    def close_and_start(self, gap):
        at = self.position()
        with self.recreated_before(gap):
            self.consumer.close()
        if at[0] == self.incarnation:
            self.committed[at[0]] = at[1]
        self.start_consumer()

    @rule(gap=GAPS)
    def start_where_the_last_one_committed(self, gap):
        self.consumer.close(autocommit=False)
        with self.recreated_before(gap):
            self.start_consumer()

    @rule(gap=GAPS)
    def transact(self, gap):
        at = self.position()
        with self.recreated_before(gap):
            try:
                self.producer.begin_transaction()
                self.producer.send("out", b"result")
                self.producer.send_offsets_to_transaction(
                    {P0: OffsetAndMetadata(at[1], "", -1)}, self.consumer.group_metadata()
                )
                self.producer.commit_transaction()
            except UnknownTopicOrPartitionError:
                self.producer.abort_transaction()
            else:
                self.results += 1
                self.committed[at[0]] = at[1]

    @rule(gap=GAPS)
    def produce(self, gap):
        serial = self.serial
        self.serial += 1
        with self.recreated_before(gap), suppress(RetriableError):
            self.plain.send("t", str(serial).encode()).get(timeout=60)
        stored = [int(value) for _, _, value in read_all(self.log, self.log.find_topic("t"))]
        before = self.contents[self.incarnation]
        assert stored[: len(before)] == before and stored[len(before) :] in ([], [serial])
        self.contents[self.incarnation] = stored

    @rule(gap=GAPS, to=st.sampled_from([Earliest(), Latest(), ShiftBy(1), ShiftBy(-1)]))
    def reset(self, gap, to):
        client = Cluster.open(self.address)
        with self.recreated_before(gap), suppress(UnknownTopicOrPartitionError, IllegalArgumentError):
            new = reset_offsets(client, "r", {P0: to})[P0].new
            known = committed_offsets(self.cluster.store, "r").get(P0)
            size, before = len(self.contents[self.incarnation]), self.reset_to.get(self.incarnation)
            wanted = {Earliest(): 0, Latest(): size}.get(to)
            if wanted is None and before is not None:
                wanted = min(max(before + to.records, 0), size)
            if known is not None:
                assert known == new == wanted
                self.reset_to[self.incarnation] = known
        client.close()

    @rule(gap=GAPS)
    def describe(self, gap):
        client = Cluster.open(self.address)
        before = self.incarnation
        with self.recreated_before(gap):
            found = group_lag(client, "g")
        client.close()
        known = [(self.committed.get(i), len(self.contents[i])) for i in (before, self.incarnation)]
        assert all((lag.committed, lag.log_end) in known for lag in found)

    @invariant()
    def nothing_of_an_earlier_topic_is_committed(self):
        for group, expected in (("g", self.committed), ("r", self.reset_to)):
            assert committed_offsets(self.cluster.store, group).get(P0) == expected.get(self.incarnation)

    @invariant()
    def results_are_those_of_committed_transactions(self):
        (end,) = (ends.high_watermark for ends in self.log.positions(self.log.find_topic("out")).values())
        assert end == self.results


NameReuse.TestCase.settings = settings(max_examples=12, stateful_step_count=20)
test_positions_of_a_deleted_topic_do_not_apply_to_its_successor = NameReuse.TestCase
