"""A canary in random histories: after `erase --purge` a note names each place that still holds erased bytes, and no
place holds them once the advice of all notes was followed.
"""

import random
import sqlite3
from contextlib import suppress
from itertools import count

import pytest
from deltalake import DeltaTable

from spark_log import Producer
from spark_log.cluster.brokers import add_broker
from spark_log.cluster.cluster import Cluster
from spark_log.config import ClusterSettings
from spark_log.errors import SparkLogError
from spark_log.ids import TopicPartition
from spark_log.log.append.encoding import Encoding, prepare
from spark_log.log.log import Records
from spark_log.maintenance import run_tasks
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.erase.erase import erase
from spark_log.metadata import scrub
from spark_log.metadata.address import SQLITE_FILE
from spark_log.replication.controller.reassignments import begin_reassignments
from spark_log.replication.controller.topic_operations import create_topic, delete_topic
from spark_log.replication.replicas.replica_moves import run_reassignments
from spark_log.tables.publication import delta_tables
from tests.support.records import NOON_MS, append_keyed, keyed, rows_of
from tests.support.replicas import assigned, folder_of, take_away
from tests.support.resources import places_with, unnamed_places

pytestmark = pytest.mark.delta

GONE, STAYS, CANARY = b"key-of-somebody-7f3a", b"key-that-stays", b"private-value-5b1d"
CONFIGS = {
    "compression.type": "none", "inline.max.bytes": "4000", "cleanup.policy": "compact,delete",
    "min.cleanable.dirty.ratio": "0", "min.insync.replicas": "1",
}  # fmt: skip
T0 = TopicPartition("t", 0)
STEPS = 16


class History:
    """A cluster of three brokers and the events of its history. Each public method is one step."""

    def __init__(self, root, choice):
        self.root, self.random = root, choice
        self.cluster = Cluster.init(str(root / "store"), log_dir=str(root / "d1"))
        for broker_id in (2, 3):
            add_broker(self.cluster, broker_id, [str(root / f"d{broker_id}")], rack=f"r{broker_id}")
        self.topic = create_topic(self.cluster, "t", 1, 2, CONFIGS)
        self.log = ClientLog(self.cluster, holder="loader")
        self.away = None
        self.producer = None
        self.reader = None
        self.done = []
        self.numbers = count()

    def rows(self):
        """A row with or without the canary; a large value makes the batch a file."""
        padding = b"." * self.random.choice([1, 1, 10_000])
        key, text = self.random.choice([(GONE, CANARY), (GONE, CANARY), (STAYS, b"public")])
        return [(key, b"%s %d %s" % (text, next(self.numbers), padding))]

    def send(self):
        append_keyed(self.log, self.topic, *self.rows())

    def seal(self):
        self.log.seal(self.topic, [0])

    def merge(self):
        self._maintenance("merge")

    def compact(self):
        self._maintenance("compact")

    def clean_up(self):
        self._maintenance("files")

    def _maintenance(self, task):
        list(run_tasks(self.cluster, [task]))

    def send_in_a_transaction(self):
        if self.producer is None:
            self.producer = Producer(cluster=str(self.root / "store"), transactional_id="payments-7")
            self.producer.init_transactions()
            self.producer.begin_transaction()
        for key, value in self.rows():
            self.producer.send("t", key=key, value=value)
        self.producer.flush()

    def end_the_transaction(self):
        if self.producer is None:
            return
        with suppress(SparkLogError):  # its topic was deleted
            self.random.choice([self.producer.commit_transaction, self.producer.abort_transaction])()
        self.producer.close()
        self.producer = None

    def delete_and_recreate_the_topic(self):
        delete_topic(self.cluster, "t")
        self.topic = create_topic(self.cluster, "t", 1, 2, CONFIGS)

    def take_a_log_dir_away_or_bring_it_back(self):
        if self.away is not None:
            return self.bring_log_dir_back()
        self.away = self.random.choice([1, 2, 3])
        if self.random.random() < 0.5:
            take_away(self.cluster, self.away)
        else:  # and not detected
            folder = folder_of(self.cluster, self.away)
            folder.rename(folder.with_name(f"{folder.name}-away"))
        return None

    def bring_log_dir_back(self):
        folder = folder_of(self.cluster, self.away)
        folder.with_name(f"{folder.name}-away").rename(folder)
        self.away = None

    def move_the_partition(self):
        if self.away is None:
            begin_reassignments(self.cluster, {T0: self.random.sample([1, 2, 3], 2)})
            run_reassignments(self.cluster, ClusterSettings(), [T0])
            assert len(assigned(self.cluster, "t")[0]) == 2

    def write_a_file_that_is_never_appended(self):
        table = prepare(keyed([(GONE, CANARY * 1_000)]), Encoding.of(self.topic), NOON_MS)
        self.log.write_batches([(self.topic, Records(0, table))])

    def optimize_the_delta_table(self):
        for location in delta_tables(self.cluster, self.topic).values():
            with suppress(Exception):  # it is offline or empty
                DeltaTable(location).optimize.z_order(["key"])

    def read_the_store(self):
        self.end_the_reader()
        self.reader = sqlite3.connect(self.root / "store" / SQLITE_FILE, isolation_level=None)
        self.reader.execute("BEGIN")
        self.reader.execute("SELECT count(*) FROM blob").fetchone()

    def end_the_reader(self):
        if self.reader is not None:
            self.reader.close()
            self.reader = None

    def erase(self):
        erase(self.cluster, "t", [GONE], purge=self.random.random() < 0.5)

    def take_a_step(self):
        steps = [
            *[self.send] * 4, self.seal, self.merge, self.compact, self.clean_up,
            *[self.send_in_a_transaction] * 2, self.end_the_transaction, self.read_the_store, self.end_the_reader,
            self.delete_and_recreate_the_topic, self.take_a_log_dir_away_or_bring_it_back, self.move_the_partition,
            self.write_a_file_that_is_never_appended, self.optimize_the_delta_table, self.erase,
        ]  # fmt: skip
        step = self.random.choice(steps)
        self.done.append(step.__name__)
        with suppress(SparkLogError):  # mostly because a log dir is offline
            step()

    def purge_and_search(self):
        """The notes of the purge, and the places of the canary."""
        try:
            notes = erase(self.cluster, "t", [GONE], purge=True).notes
        except SparkLogError:  # the partition has no leader without the offline log dir: no guarantee applies
            assert self.away is not None
            self.bring_log_dir_back()
            notes = erase(self.cluster, "t", [GONE], purge=True).notes
        return notes, places_with(self.cluster, self.root, GONE, CANARY, away=[self.away] if self.away else [])

    def follow_the_advice(self):
        if self.away is not None:
            self.bring_log_dir_back()
        self.end_the_transaction()
        self.end_the_reader()
        self.log.close()

    def close(self):
        self.follow_the_advice()
        self.cluster.close()


@pytest.mark.parametrize("seed", range(12, 24))
def test_a_note_names_each_place_that_holds_the_canary(seed, tmp_path, monkeypatch):
    monkeypatch.setattr(scrub, "WAIT_MS", 20)
    history = History(tmp_path, random.Random(seed))
    try:
        for _ in range(STEPS):
            history.take_a_step()
        notes, found = history.purge_and_search()
        assert unnamed_places(notes, found) == [], (history.done, notes)
        history.follow_the_advice()
        for path in tmp_path.rglob("part-*.parquet"):  # as a note advises
            path.unlink()
        notes, found = history.purge_and_search()
        assert (notes, found) == ((), {}), history.done
        assert {row[2] for row in rows_of(history.log, history.topic)} <= {STAYS}
    finally:
        history.close()
