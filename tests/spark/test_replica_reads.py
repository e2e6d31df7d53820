"""Spark reads with three replicas: tasks skip and repair damaged files, and read in their own rack."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_log import read_topic
from spark_log.cluster.brokers import add_broker
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import Topic
from spark_log.maintenance.client_log import ClientLog
from spark_log.metadata import tables as t
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.disk_faults import DAMAGES, StoredFile, replicas_of
from tests.support.s3 import S3Server
from tests.support.stores import change
from tests.support.topics import append, fails, read, read_stream, values

PARTITIONS, SEGMENTS = 2, 4
RACKS = {2: "near", 3: "far"}


class Replicated:
    """Topic t: two partitions of four segments each, in the log dirs of brokers 1, 2 (rack near), 3 (rack far)."""

    def __init__(self, address: Path, log_dirs: dict[int, str]) -> None:
        self.cluster = Cluster.init(str(address), log_dir=log_dirs[1])
        for broker_id in (2, 3):
            add_broker(self.cluster, broker_id, [log_dirs[broker_id]], RACKS[broker_id])
        self.log = ClientLog(self.cluster)
        topic = create_topic(self.cluster, "t", PARTITIONS, 3, configs={"inline.max.bytes": "0"})
        assert topic is not None
        self.topic: Topic = topic
        self.expected: dict[int, list[str]] = {partition: [] for partition in range(PARTITIONS)}
        for _ in range(SEGMENTS):
            for partition in range(PARTITIONS):
                new = [uuid4().hex for _ in range(50)]
                append(self.log, self.topic, *new, partition=partition)
                self.expected[partition] += new

    def close(self) -> None:
        self.log.close()
        self.cluster.close()

    def replicas(self) -> list[list[StoredFile]]:
        return replicas_of(self.cluster, self.log, self.topic)

    def remove_all_but(self, broker_id: int) -> list[StoredFile]:
        missing = [file for files in self.replicas() for file in files if file.broker_id != broker_id]
        for file in missing:
            file.damage("missing")
        return missing


@pytest.fixture
def folders(tmp_path: Path) -> dict[int, Path]:
    return {broker_id: tmp_path / "log-dirs" / f"broker-{broker_id}" for broker_id in (1, 2, 3)}


@pytest.fixture
def local(tmp_path: Path, folders: dict[int, Path]) -> Iterator[Replicated]:
    made = Replicated(tmp_path / "cluster", {broker_id: str(folder) for broker_id, folder in folders.items()})
    yield made
    made.close()


@pytest.fixture
def remote(tmp_path: Path, s3_server: S3Server) -> Iterator[Replicated]:
    prefix = uuid4().hex
    uris = {broker_id: s3_server.uri(f"{prefix}/broker-{broker_id}") for broker_id in (1, 2, 3)}
    made = Replicated(tmp_path / "cluster", uris)
    yield made
    made.close()


def streamed(frame: DataFrame, checkpoint: Path) -> dict[int, list[str]]:
    """The values that a streaming query reads until no record is left."""
    found: dict[int, list[str]] = {}

    def take(batch: DataFrame, _: int) -> None:
        for partition, more in values(batch).items():
            found.setdefault(partition, []).extend(more)

    writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()
    return found


Read = Callable[..., dict[int, list[str]]]


@pytest.fixture(params=["batch", "stream"])
def read_with(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Read:
    """A function that reads topic t of a cluster with options of the source."""

    def batch(cluster: Cluster, **options: str) -> dict[int, list[str]]:
        return values(read(spark, cluster, subscribe="t", **options))

    def stream(cluster: Cluster, **options: str) -> dict[int, list[str]]:
        frame = read_stream(spark, cluster, subscribe="t", startingOffsets="earliest", **options)
        return streamed(frame, tmp_path / uuid4().hex)

    return batch if request.param == "batch" else stream


def check_damaged_replicas_are_skipped_and_repaired(stored: Replicated, read_with: Read) -> None:
    """Each segment is damaged in another way, in the two replicas that are read first."""
    replicas = stored.replicas()
    whole = [[file.read() for file in files] for files in replicas]
    for files, kind in zip(replicas, itertools.cycle(DAMAGES), strict=False):
        files[0].damage(kind)
        files[1].damage(kind)
    assert read_with(stored.cluster) == stored.expected
    assert [[file.read() for file in files] for files in replicas] == whole


def test_damaged_replicas_are_skipped_and_repaired(local: Replicated, read_with: Read) -> None:
    assert len(local.replicas()) >= len(DAMAGES)
    check_damaged_replicas_are_skipped_and_repaired(local, read_with)


def test_damaged_replicas_in_object_storage(remote: Replicated, read_with: Read) -> None:
    check_damaged_replicas_are_skipped_and_repaired(remote, read_with)


def test_missing_or_swapped_log_dirs(local: Replicated, folders: dict[int, Path], read_with: Read) -> None:
    folders[1].rename(folders[1].with_name("away"))
    assert read_with(local.cluster) == local.expected
    folders[2].rename(folders[1])  # log dir 2 is at the path of log dir 1, and its own path is empty
    before = sorted(folders[1].rglob("*"))
    assert read_with(local.cluster) == local.expected
    assert sorted(folders[1].rglob("*")) == before and not folders[2].exists()


def test_a_segment_without_a_good_replica_is_an_error_that_names_it(local: Replicated, read_with: Read) -> None:
    files = local.replicas()[0]
    for file in files:
        file.damage("bit in a page")
    with fails("no replica has segment", files[0].name):
        read_with(local.cluster)


def test_tasks_read_in_their_rack(local: Replicated, read_with: Read) -> None:
    missing = local.remove_all_but(3)
    assert read_with(local.cluster, kafka__client__rack="far") == local.expected
    assert read_with(local.cluster, kafka__client__rack="far", startingTimestamp="0") == local.expected
    assert [file.read() for file in missing] == [None] * len(missing), "no reader opened it"
    # now this replica is read last
    change(local.cluster, t.replica.update().where(t.replica.c.broker_id == 3).values(in_sync=False))
    assert read_with(local.cluster) == local.expected
    assert [file.read() for file in missing] != [None] * len(missing)


# read_topic: Spark's own scan, of files that are chosen when it is planned


def test_read_topic_skips_files_with_another_size_or_footer(spark: SparkSession, local: Replicated) -> None:
    replicas = local.replicas()
    kinds = [kind for kind in DAMAGES if kind != "bit in a page"]
    assert len(kinds) <= len(replicas)
    for files, kind in zip(replicas, kinds, strict=False):
        files[0].damage(kind)
        files[1].damage(kind)
    assert values(read_topic(spark, local.cluster, "t")) == local.expected
    for files, kind in zip(replicas, kinds, strict=False):
        whole = files[2].read()
        files[2].damage(kind)
        with fails("no replica has segment", files[0].name):
            read_topic(spark, local.cluster, "t")
        files[2].write(whole)


def test_read_topic_skips_a_log_dir_with_another_id(
    spark: SparkSession, local: Replicated, folders: dict[int, Path]
) -> None:
    """The file there has the right name and size, but its log dir is unknown."""
    for folder, name in ((folders[1], "away"), (folders[2], "broker-1")):
        folder.rename(folder.with_name(name))
    for file in folders[1].rglob("*.parquet"):
        file.write_bytes(bytes(file.stat().st_size))
    assert values(read_topic(spark, local.cluster, "t")) == local.expected


def test_read_topic_prefers_its_rack_and_reads_failed_log_dirs_last(spark: SparkSession, local: Replicated) -> None:
    frame = read_topic(spark, local.cluster, "t", client_rack="far")
    assert {"/broker-3/" in file for file in frame.inputFiles()} == {True}
    change(local.cluster, t.log_dir.update().where(t.log_dir.c.broker_id == 3).values(online=False))
    frame = read_topic(spark, local.cluster, "t", client_rack="far")
    assert {"/broker-3/" in file for file in frame.inputFiles()} == {False}
    local.remove_all_but(3)
    assert values(read_topic(spark, local.cluster, "t")) == local.expected
