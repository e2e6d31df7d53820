"""Mirrors for the tests: a source with all kinds of records and gaps, copying without Spark, and a process to kill.

python -m tests.support.mirroring SOURCE TARGET OFFSETS_PER_STEP
"""

import contextlib
import pickle
import sys
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import Topic
from spark_log.ids import TopicPartition
from spark_log.log.append.transfer import Transfer, Transferred, transfer
from spark_log.log.append.write_ids import Writer
from spark_log.log.log import Records
from spark_log.log.records.schema import read_schema
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.removal.retention import delete_records
from spark_log.maintenance.rewrite.rewrite_plan import plan_rewriting, segments
from spark_log.maintenance.rewrite.segment_rewrite import swap, write
from spark_log.replication.controller.topic_operations import alter_configs, create_topic
from spark_log.spark.datasource.options.topic_choice import SubscribeTopics
from spark_log.spark.mirror.mirror import Mirror, Step
from spark_log.spark.mirror.mirror_topics import MirrorSettings
from tests.support.records import NOON_MS, read_rows, table

PARTITIONS = 4


def make_source(cluster: Cluster) -> Topic:
    """Topic "t": blobs, files, both timestamp types, headers, null keys and values (0); gaps from compaction, also at
    both ends of a segment, and a segment without remaining records (1); a log that begins at 5 (2); no records (3).
    """
    configs = {"inline.max.bytes": "1000", "compression.type": "none", "retention.ms": "-1"}
    topic = create_topic(cluster, "t", PARTITIONS, configs=configs)
    assert topic is not None
    log = ClientLog(cluster)
    for number in range(3):
        few = table(f"few-{number}", "", headers=[("a", b"1"), ("a", b"\x00")], timestamp_ms=NOON_MS + number)
        log.append(topic, [Records(0, few)])
        log.append(topic, [Records(0, table(*(f"{number}-{i}-" + "x" * 50 for i in range(30)), key=b"k"))])
    log.append(topic, [Records(0, _tombstone())])
    stamped = alter_configs(cluster, "t", {"message.timestamp.type": "LogAppendTime"})
    log.append(stamped, [Records(0, table("stamped"))])
    for first in (0, 40, 80):
        log.append(topic, [Records(1, table(*(f"{first + i}" + "y" * 50 for i in range(40)), key=b"k"))])
    compact(cluster, topic, 1, lambda offsets: pc.and_(pc.equal(pc.bit_wise_and(offsets, 3), 1), pc.less(offsets, 60)))
    log.append(topic, [Records(1, table("after", key=b"k"))])
    for first in range(3):
        log.append(topic, [Records(2, table(*(f"{3 * first + i}" for i in range(3))))])
    delete_records(cluster, {TopicPartition("t", 2): 5})
    log.close()
    return topic


def _tombstone() -> pa.Table:
    whole = table("", key=b"k")
    return whole.set_column(1, whole.schema.field("value"), pa.nulls(1, pa.binary()))


def compact(cluster: Cluster, topic: Topic, partition: int, stays: Any) -> None:
    """Rewrite each file of the partition: only the records whose offsets `stays` selects remain."""
    writer = Writer(cluster.store, "test", 60_000)
    for segment in cluster.store.read(lambda c: segments(c, topic, partition, inline=False)):
        with cluster.store.snapshot() as connection:
            rewriting = plan_rewriting(connection, topic, partition, [segment])
        assert rewriting is not None
        write_id, name = writer.file_name()
        written = write(rewriting, name, cluster.log_dirs(), cluster.log_dir, lambda offsets, _: stays(offsets))
        assert swap(cluster, write_id, rewriting, written)
    writer.close()


def everything(cluster: Cluster, name: str = "t") -> list[dict[str, Any]]:
    """Every readable record with all its fields except the topic, by partition and offset."""
    columns = [field for field in read_schema(True).names if field != "topic"]
    with contextlib.closing(ClientLog(cluster)) as log:
        return read_rows(log, log.find_topic(name), read_schema(True, columns))


def without_spark(transfers: Sequence[Transfer]) -> list[Transferred]:
    """Run the transfers in no particular order, as a Spark job does."""
    return [pickle.loads(pickle.dumps(transfer(pickle.loads(pickle.dumps(task))))) for task in reversed(transfers)]


def mirror_all(mirror: Mirror) -> list[Step]:
    """Run steps until there is nothing new; returns them."""
    steps = []
    while (step := mirror.step(without_spark)) is not None:
        steps.append(step)
    return steps


def main(source: str, target: str, offsets_per_step: int) -> None:
    with Cluster.open(source) as one, Cluster.open(target) as other:
        settings = MirrorSettings(SubscribeTopics(("t",)), create=True, offsets_per_step_max=offsets_per_step)
        mirror = Mirror(one, other, settings)
        mirror_all(mirror)
        mirror.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
