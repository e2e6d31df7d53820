"""Retention and clean-up killed at any point: the next run continues, and no file in use is lost."""

from pathlib import Path

import pytest
import sqlalchemy as sa

from spark_log import clock
from spark_log.cluster.brokers import add_broker
from spark_log.cluster.cluster import Cluster
from spark_log.failpoints import POINTS
from spark_log.ids import TopicPartition
from spark_log.log.append import write_ids
from spark_log.log.log import Records
from spark_log.maintenance import run_tasks
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.removal.retention import delete_records
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import SEGMENT
from spark_log.replication.controller.topic_operations import create_topic, delete_topic
from tests.support.python_process import killed_at
from tests.support.records import NOON_MS, read_all, table
from tests.support.stores import STORES, TWO_STORES, change, count_rows, put_topics_in_a_data_store, topics_view
from tests.support.table_checks import assert_delta_is_the_log, assert_replicas_are_whole
from tests.support.topics import append

pytestmark = pytest.mark.delta

PROGRAM = """
import sys
from spark_log.cluster.cluster import Cluster
from spark_log.ids import TopicPartition
from spark_log.maintenance.removal.retention import delete_records
from spark_log.maintenance import run_tasks
if sys.argv[2] == "delete_records":
    delete_records(Cluster.open(sys.argv[1]), {TopicPartition("t", 0): 2, TopicPartition("t", 1): -1})
else:
    list(run_tasks(sys.argv[1], sys.argv[2:]))
"""


class Scene:
    """Two brokers; a topic with old and young records in two partitions, a deleted topic, an orphan."""

    def __init__(self, folder, address, server):
        self.cluster = Cluster.init(address, log_dir=str(folder / "d1"))
        if TWO_STORES:
            put_topics_in_a_data_store(self.cluster, server)
        self.store = topics_view(self.cluster).store
        add_broker(self.cluster, 2, [str(folder / "d2")])
        self.roots = [folder / "d1", folder / "d2"]
        configs = {"inline.max.bytes": "700", "retired.file.retention.ms": "0", "delta.max.lag.ms": "-1"}
        self.topic = create_topic(self.cluster, "t", 2, 2, configs)
        doomed = create_topic(self.cluster, "doomed", 1, 2, {"inline.max.bytes": "0"})
        self.log = ClientLog(self.cluster)
        for partition in (0, 1):
            self.append(partition, "x" * 1000, "tail", timestamp_ms=NOON_MS)
        self.append(0, "young", "y" * 1000)
        self.log.append(doomed, [Records(0, table("a"))])
        delete_topic(self.cluster, "doomed")
        self.write_id = write_ids.register(self.store, "test", 60_000)
        for root in self.roots:
            Path(root, self.topic.folder, "_segments", "0", f"{self.write_id}-0.parquet").write_text("orphan")
        self.execute(t.retired_file.update().values(retired_ms=0))
        self.execute(t.write_id.update().where(t.write_id.c.write_id == self.write_id).values(until_ms=0))

    def execute(self, statement):
        change(self.cluster, statement)

    def append(self, partition, *values, timestamp_ms=None):
        for value in values:
            append(self.log, self.topic, value, partition=partition, timestamp_ms=timestamp_ms or clock.wall_ms())

    def records(self):
        return [(partition, value[:5]) for partition, _, value in read_all(self.log, self.topic)]

    def is_tidy(self):
        """After all maintenance tasks, the log dirs hold exactly the files that the metadata names."""
        query = sa.select(SEGMENT.partition, SEGMENT.name).where(~SEGMENT.inline)
        named = {f"{n}/{name}" for n, name in self.store.read(lambda c: c.execute(query).all())}
        for root in self.roots:
            segments = root / self.topic.folder / "_segments"
            assert {str(path.relative_to(segments)) for path in segments.rglob("*") if path.is_file()} == named
            assert {path.name for path in root.iterdir() if path.is_dir()} == {self.topic.folder}
        inline = sa.select(sa.func.count()).where(SEGMENT.inline)
        assert self.store.read(lambda c: c.execute(inline).scalar_one()) == count_rows(self.store, t.blob)
        assert count_rows(self.store, t.retired_file) == 0
        assert_delta_is_the_log(self.cluster)
        assert_replicas_are_whole(self.cluster)


@pytest.fixture
def scene(request, cluster_address, tmp_path):
    """With SPARK_LOG_TEST_STORES=two, its topics are in a data store."""
    scene = Scene(tmp_path, cluster_address, request.getfixturevalue("postgres_server") if TWO_STORES else None)
    yield scene
    scene.log.close()
    scene.cluster.close()


def check_recovery(scene, address):
    scene.log.close()
    list(run_tasks(address, ["retention", "files"]))
    assert scene.records() == [(0, "young"), (0, "yyyyy")]
    scene.is_tidy()
    scene.append(1, "on")
    assert scene.records()[-1] == (1, "on")


OURS = [name for name in POINTS if name.startswith(("retention.", "clean_up."))]
ON_POSTGRESQL = ["retention.decided", "clean_up.retired-deleted"]
"""Points where a transaction ends with the connection, and where files are ahead of their rows."""


@pytest.mark.parametrize(
    ("point", "cluster_address"),
    [*((point, "sqlite") for point in OURS), *((point, STORES[-1]) for point in ON_POSTGRESQL)],
    indirect=["cluster_address"],
)
def test_killed_maintenance_loses_nothing(point, scene, cluster_address):
    killed_at(point, "-c", PROGRAM, cluster_address, "retention", "files")
    before = point == "retention.decided"
    assert len(scene.records()) == (6 if before else 2), "all of the transaction, or nothing"
    assert_replicas_are_whole(scene.cluster)
    check_recovery(scene, cluster_address)


@pytest.mark.parametrize("cluster_address", STORES[:1], indirect=True)
@pytest.mark.parametrize("point", ["retention.decided", "retention.committed"])
def test_a_killed_delete_records_loses_nothing(point, scene, cluster_address):
    killed_at(point, "-c", PROGRAM, cluster_address, "delete_records")
    assert len(scene.records()) == (6 if point == "retention.decided" else 2)
    wanted = {TopicPartition("t", 0): 2, TopicPartition("t", 1): 2}
    assert delete_records(scene.cluster, wanted) == wanted
    check_recovery(scene, cluster_address)
