"""Streams, mirrors and tables over a log that elections truncate and a topic that is created again, in random order:
each sees a prefix of one lineage, or reports the offset where the lineages diverge.
"""

import logging
import random
import re

import pytest

from spark_log.cluster.cluster import Cluster
from spark_log.errors import DataLossError
from spark_log.ids import OffsetRange, TopicPartition
from spark_log.replication.controller.topic_operations import delete_topic
from spark_log.spark.datasource.options.topic_choice import SubscribeTopics
from spark_log.spark.mirror.mirror import Mirror
from spark_log.spark.mirror.mirror_topics import MirrorSettings
from spark_log.spark.streams.table_version import read_version
from tests.support.data_source import StreamQuery
from tests.support.lineage import LineageReader, Tag, TaggedLog
from tests.support.mirroring import everything, without_spark

STEPS = 60
_TRUNCATED = re.compile(r"t-0 offset was changed from \d+ to (\d+): the records")
_RECREATED = "was deleted and created again"


class Stream:
    """A query that continues after data loss, and whose batches may wait between planning and running."""

    def __init__(self, log, chance, caplog):
        self.reader, self.chance, self.caplog = LineageReader(log), chance, caplog
        self.query = StreamQuery(log.cluster, failOnDataLoss=False)
        self.planned = None

    def act(self):
        if self.chance.random() < 0.2:
            self.query.restart(maxOffsetsPerTrigger=self.chance.choice([1, 3, 100]))
        if self.planned is None:
            self.planned = self.query.plan()
            if self.planned == self.query.checkpoint:
                self.planned = None
        if self.planned is None or self.chance.random() < 0.6:
            return
        self.caplog.clear()
        rows = self.query.run(self.planned)
        self.planned = None
        for loss in self.caplog.messages:
            cut = _TRUNCATED.search(loss)
            if cut or _RECREATED in loss:
                self._reported(int(cut[1]) if cut else 0)
        self.reader.saw(Tag.of(value) for _, value in rows)

    def _reported(self, offset):
        if self.reader.seen:
            self.reader.reported(offset)

    def finish(self):
        while self.planned is not None or self.query.plan() != self.query.checkpoint:
            self.act()
        self.reader.is_up_to_date()
        self.query.reader.stop()


class Mirrored:
    """A mirror whose target is recreated when the mirror reports that the source has lost copied records."""

    def __init__(self, log, chance, target):
        self.log, self.chance, self.target = log, chance, target
        self.mirror = None
        self.seen = []

    def act(self):
        if self.mirror is None or self.chance.random() < 0.2:
            self.stop()
            settings = MirrorSettings(
                SubscribeTopics(("t",)),
                create=True,
                replication_factor=1,
                offsets_per_step_max=self.chance.choice([2, 99]),
            )
            self.mirror = Mirror(self.log.cluster, self.target, settings)
        try:
            step = self.mirror.step(without_spark)
        except DataLossError as error:
            assert self.seen != self.log.records[: len(self.seen)], f"nothing was lost: {error}"
            delete_topic(self.target, "t")
            self.stop()
            self.seen = []
            return True
        reader = LineageReader(self.log)
        reader.saw(Tag.of(row["value"]) for row in everything(self.target))
        self.seen = reader.seen
        return step is not None

    def finish(self):
        while self.act():
            pass
        assert self.seen == self.log.records
        self.stop()

    def stop(self):
        if self.mirror is not None:
            self.mirror.close()
        self.mirror = None


class TableOf:
    """The state of a live table: a version and its records, to which newer records are added if the
    versions allow it.
    """

    def __init__(self, log):
        self.log, self.version, self.seen = log, None, []

    def act(self):
        version = read_version(self.log.log, "t")
        new = None
        if self.version is not None:
            new = version.since(self.version)
            lost = self.seen != self.log.records[: len(self.seen)]
            assert lost == (read_version(self.log.log, "t", self.version) != self.version) or not self.seen
            assert lost == version.diverges_from(self.version) or not self.seen
        if new is None:
            self.seen = []
            new = {0: OffsetRange(version.partitions[0].start, version.partitions[0].end)}
        for number, where in new.items():
            batches = self.log.log.read({TopicPartition("t", number): where})
            self.seen += [Tag.of(value) for batch in batches for value in batch.column("value").to_pylist()]
        self.version = version
        assert self.seen == self.log.records

    finish = act


@pytest.mark.parametrize("seed", range(3))
def test_each_reader_sees_one_lineage_or_reports_its_end(tmp_path, caplog, seed):
    caplog.set_level(logging.WARNING, "spark_log.spark.datasource.read.read_planner")
    chance = random.Random(seed)
    with Cluster.init(str(tmp_path / "source")) as source, Cluster.init(str(tmp_path / "target")) as target:
        log = TaggedLog(source, tmp_path)
        queries = [Stream(log, chance, caplog), Mirrored(log, chance, target), TableOf(log)]
        for _ in range(STEPS):
            step = chance.choice(["append", "append", "election", "election", "query", "query", "query", "recreate"])
            if step == "append":
                log.append(chance.randint(1, 4))
            elif step == "election":
                if log.away is None:
                    log.fork()
                elif len(log.records) == log.fork_offset:
                    log.append()
                else:
                    chance.choice([log.cut, log.cut, log.join])()
                    if chance.random() < 0.7:
                        log.append(chance.randint(2, 8))
            elif step == "query":
                chance.choice(queries).act()
            elif chance.random() < 0.3:
                log.recreate()
        for query in queries:
            query.finish()
        log.log.close()
