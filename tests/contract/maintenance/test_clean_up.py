"""Clean-up: which files it deletes, when and in which log dirs, and which files it keeps."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from spark_log import clock
from spark_log.cluster.brokers import add_broker
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.log_dir import LogDir, segment_path
from spark_log.ids import LogDirId, OffsetRange, TopicPartition
from spark_log.log.append import write_ids
from spark_log.log.log import Records
from spark_log.log.partitions.retired_files import forget_folder
from spark_log.log.records.schema import read_schema
from spark_log.log.segments.fetcher import Fetcher
from spark_log.maintenance import run_tasks
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.context import work_in_each_store
from spark_log.maintenance.removal.cleanable_log_dirs import CleanableLogDirs
from spark_log.maintenance.removal.retention import apply_retention
from spark_log.maintenance.removal.retired_file_clean_up import delete_left_copies
from spark_log.maintenance.upkeep_tasks import clean_up_files
from spark_log.metadata import tables as t
from spark_log.replication.controller.topic_operations import create_topic, delete_topic
from spark_log.replication.replicas.catch_up import catch_up
from tests.support.records import table
from tests.support.replicas import bring_back, folder_of, take_away
from tests.support.resources import clean, files, folders_of, named, plant, retired
from tests.support.stores import change, scanned_tables, topics_view
from tests.support.table_checks import assert_delta_is_the_log, assert_replicas_are_whole
from tests.support.topics import make_older

pytestmark = pytest.mark.delta


DAY_MS = 24 * 60 * 60 * 1000


FILES = {"inline.max.bytes": "0"}


AT_ONCE = {**FILES, "retired.file.retention.ms": "0"}


OLD_MS = 1_000_000_000_000


def append(log, topic, *values, timestamp_ms=OLD_MS):
    [outcome] = log.append(topic, [Records(0, table(*values, timestamp_ms=timestamp_ms))])
    return outcome


def gone_id():
    return os.urandom(16).hex()


def everything_fits(cluster):
    assert_delta_is_the_log(cluster)
    assert_replicas_are_whole(cluster)


def test_a_retired_file_is_kept_for_its_readers_and_then_deleted_in_every_log_dir(three_brokers, tmp_path):
    cluster = three_brokers
    log = ClientLog(cluster)
    topic = create_topic(cluster, "t", 1, 3, FILES)
    append(log, topic, "old", "older")
    append(log, topic, "young", timestamp_ms=clock.wall_ms())
    log.close()  # its write id is released: only the table of retired files keeps the file
    plan = log.plan({TopicPartition("t", 0): OffsetRange(0, 2)})
    size = plan.slices[0].size
    apply_retention(cluster.of(topic), topic)
    assert clean(cluster) == {}
    rows = [
        row for b in Fetcher(plan.log_dirs).read(plan.slices, read_schema(columns=["value"])) for row in b.to_pylist()
    ]
    assert [row["value"] for row in rows] == [b"old", b"older"], "who had planned before reads on"
    change(cluster, t.retired_file.update().values(retired_ms=clock.wall_ms() - 7 * DAY_MS - 60_000))
    found = clean(cluster)
    assert (found["t"].before.files, found["t"].before.bytes) == (3, 3 * size)
    assert retired(cluster) == []
    for broker_id in (1, 2, 3):
        assert files(tmp_path / f"d{broker_id}", topic) == named(cluster)
    assert clean(cluster) == {}
    everything_fits(cluster)


def test_a_file_that_was_merged_soon_is_kept_for_a_shorter_time(cluster, log):
    topic = create_topic(cluster, "t", configs={**FILES, "retention.ms": "-1"})
    append(log, topic, "a")
    make_older(cluster, 601_000)
    append(log, topic, "b")
    list(run_tasks(cluster, ["merge"]))
    assert len(retired(cluster)) == 2
    change(cluster, t.retired_file.update().values(retired_ms=clock.wall_ms() - DAY_MS - 60_000))
    assert clean(cluster)["t"].before.files == 1
    assert len(retired(cluster)) == 1
    change(cluster, t.retired_file.update().values(retired_ms=clock.wall_ms() - 7 * DAY_MS - 60_000))
    assert clean(cluster)["t"].before.files == 1
    everything_fits(cluster)


def test_a_file_is_kept_while_a_delta_table_lists_it(cluster, log, tmp_path):
    topic = create_topic(cluster, "t", configs=AT_ONCE)
    append(log, topic, "old")
    append(log, topic, "young", timestamp_ms=clock.wall_ms())
    delta_log = folder_of(cluster, 1) / topic.folder / "_delta_log"
    delta_log.rename(tmp_path / "aside")
    delta_log.write_text("no folder")  # neither retention nor clean-up can publish
    apply_retention(cluster.of(topic), topic)
    report = clean(cluster)["t"]
    assert (report.before.files, report.notes) == (
        0,
        ("1 retired file waits until no table lists it",),
    )
    assert len(files(folder_of(cluster, 1), topic)) == 2
    delta_log.unlink()
    (tmp_path / "aside").rename(delta_log)
    assert clean(cluster)["t"].before.files == 1
    everything_fits(cluster)


def test_an_offline_log_dir_does_not_stop_the_others_and_is_cleaned_when_it_returns(three_brokers, tmp_path):
    cluster = three_brokers
    log = ClientLog(cluster)
    topic = create_topic(cluster, "t", 1, 3, AT_ONCE)
    doomed = create_topic(cluster, "doomed", 1, 3, FILES)
    for one in (topic, doomed):
        append(log, one, "old")
        append(log, one, "young", timestamp_ms=clock.wall_ms())
    log.close()
    take_away(cluster, 3)
    apply_retention(cluster.of(topic), topic)
    delete_topic(cluster, "doomed")
    change(cluster, t.retired_file.update().where(t.retired_file.c.partition.is_(None)).values(retired_ms=0))
    found = clean(cluster)
    assert (found["t"].before.files, found[None].before.files) == (2, 2 * (2 + 3)), "and the Delta log's versions"
    assert "offline" in "".join(found[None].notes)
    assert retired(cluster) == [doomed.folder], "which waits for every log dir"
    for broker_id in (1, 2):
        assert files(tmp_path / f"d{broker_id}", topic) == named(cluster)
        assert not Path(tmp_path, f"d{broker_id}", doomed.folder).exists()

    bring_back(cluster, 3)
    assert len(files(tmp_path / "d3", topic)) == 2
    found = clean(cluster)
    assert (found["t"].before.files, found[None].before.files) == (1, 5)
    assert files(tmp_path / "d3", topic) == named(cluster)
    assert not Path(tmp_path, "d3", doomed.folder).exists()
    assert retired(cluster) == []
    everything_fits(cluster)  # a full comparison repaired the table of 3: the list of removed files no longer existed
    broker = next(info.broker_id for info in cluster.log_dirs().values() if info.broker_id == 3)
    catch_up(cluster.of(topic), topic, 0, broker)
    everything_fits(cluster)


def test_files_of_a_deleted_topic_are_kept_for_its_readers_and_other_topics_stay(cluster, log):
    keep, doomed = create_topic(cluster, "keep", configs=FILES), create_topic(cluster, "doomed", configs=FILES)
    for topic in (keep, doomed):
        append(log, topic, "a", timestamp_ms=clock.wall_ms())
    delete_topic(cluster, "doomed")
    log.close()
    root = folder_of(cluster, 1)
    assert clean(cluster) == {}
    assert len(files(root, doomed)) == 1
    aged = t.retired_file.update().values(retired_ms=clock.wall_ms() - 7 * DAY_MS - 60_000)
    change(cluster, aged)
    linked = root / doomed.folder / "_segments" / "link"
    linked.symlink_to(root / keep.folder)
    note = clean(cluster)[None].notes
    assert "symbolic link" in "".join(note)
    assert retired(cluster) == [doomed.folder]
    linked.unlink()
    assert clean(cluster, topics=["keep"]) == {}, "not of this topic"
    assert clean(cluster)[None].before.files == 1 + len(["create", "append"])
    assert folders_of(root) == [keep.folder]
    assert retired(cluster) == []
    again = create_topic(cluster, "doomed", configs=FILES)
    append(ClientLog(cluster), again, "new", timestamp_ms=clock.wall_ms())
    change(cluster, sa.insert(t.retired_file).values(path=again.folder, topic_id=999, retired_ms=0))
    assert "no deleted topic's folder" in "".join(clean(cluster)[None].notes)
    everything_fits(cluster)


@pytest.mark.on_sqlite
def test_the_rows_of_a_deleted_topic_are_found_by_indexes(cluster):
    doomed = create_topic(cluster, "doomed", configs=FILES)
    for topic_id in (doomed.topic_id, 0):  # the first releases wrote 0
        row = {"path": f"{doomed.folder}/_segments/0/{topic_id}.parquet", "topic_id": topic_id, "partition": 0}
        change(cluster, t.retired_file.insert().values(**row, retired_ms=0))
    delete_topic(cluster, "doomed")
    assert len(retired(cluster)) == 2 + 1
    with scanned_tables(cluster) as scanned:
        cluster.store.transact(lambda connection: forget_folder(connection, doomed.folder))
    assert retired(cluster) == []
    assert "retired_file" not in scanned


@pytest.mark.on_data_store
@pytest.mark.on_sqlite
def test_topics_with_the_longest_names_are_sealed_and_cleaned_as_the_others(cluster, log):
    """Their folders have names that the file system takes."""
    root = folder_of(cluster, 1)
    names = ["-" * 249, "-" * 248 + "a", "z"]
    topics = [create_topic(cluster, name, configs=FILES) for name in names]
    orphans = []
    for topic in topics:
        append(log, topic, "a", timestamp_ms=clock.wall_ms())
        assert len(files(root, topic)) == 1
        write_id = write_ids.register(topics_view(cluster).store, "test", 60_000)
        orphans.append(plant(cluster, segment_path(topic.folder, 0, f"{write_id}-0.parquet")))
    change(cluster, t.write_id.update().where(t.write_id.c.holder == "test").values(until_ms=0))
    assert set(clean(cluster)) == set(names)
    assert not any(orphan.exists() for orphan in orphans)
    for name in names[:2]:
        delete_topic(cluster, name)
    change(cluster, t.retired_file.update().values(retired_ms=clock.wall_ms() - 7 * DAY_MS - 60_000))
    clean(cluster)
    assert folders_of(root) == [topics[2].folder]
    everything_fits(cluster)


@pytest.mark.on_data_store
@pytest.mark.on_sqlite
def test_a_folder_whose_name_is_too_long_for_the_file_system_is_forgotten(cluster):
    """As an earlier release recorded it for a deleted topic."""
    folder = sa.insert(t.retired_file).values(path=f"{'a' * 249}-00000000", topic_id=999, retired_ms=0)
    cluster.store.transact(lambda connection: connection.execute(folder))  # home has the folders of deleted topics
    clean(cluster)
    assert retired(cluster) == []


@pytest.mark.on_data_store
@pytest.mark.on_sqlite
def test_nothing_is_deleted_in_a_swapped_log_dir(three_brokers, tmp_path):
    """A disk that was swapped without notice: nothing is deleted there, and the other log dirs are cleaned."""
    cluster = three_brokers
    log = ClientLog(cluster)
    topic = create_topic(cluster, "t", 1, 3, AT_ONCE)
    append(log, topic, "old")
    log.close()
    apply_retention(cluster.of(topic), topic)
    for marker in (tmp_path / "d1").glob("spark_log_dir*.json"):
        shutil.copy(marker, tmp_path / "d3" / marker.name)
    found = clean(cluster)
    assert found["t"].before.files == 2
    assert "swapped" in "".join(found[None].notes)
    assert [len(files(tmp_path / f"d{n}", topic)) for n in (1, 2, 3)] == [0, 0, 1]


@pytest.mark.on_data_store
@pytest.mark.on_sqlite
def test_a_copy_in_a_log_dir_without_a_replica_is_left_to_reassignment(cluster, log, tmp_path):
    topic = create_topic(cluster, "t", configs=FILES)
    append(log, topic, "a", timestamp_ms=clock.wall_ms())
    add_broker(cluster, 2, [str(tmp_path / "d2")])
    [name] = named(cluster)
    copy = plant(cluster, f"{topic.folder}/_segments/0/{name}", broker_id=2)
    assert clean(cluster) == {}
    assert copy.exists()


def clean_until(cluster, stopping):
    """Run the task as a coordinator that is to stop as soon as `stopping` returns True."""
    work = work_in_each_store(
        cluster, "test", None, lambda context: clean_up_files(replace(context, stopping=stopping))
    )
    list(work)


def test_a_run_that_is_to_stop_leaves_the_other_files_to_the_next_run(three_brokers):
    cluster = three_brokers
    topics = [create_topic(cluster, name, 1, 3, FILES) for name in "ab"]
    paths = [f"{topic.folder}/_segments/0/{gone_id()}-1.parquet" for topic in topics]
    orphans = [plant(cluster, path, broker_id=each, age_ms=2 * DAY_MS) for path in paths for each in (1, 2, 3)]
    clean_until(cluster, lambda: not all(map(Path.exists, orphans)))
    assert sum(map(Path.exists, orphans)) == 5
    clean(cluster)
    assert not any(map(Path.exists, orphans))


def test_a_run_that_is_to_stop_leaves_the_copies_in_other_log_dirs_that_were_offline_to_the_next_run(
    three_brokers, monkeypatch
):
    cluster = topics_view(three_brokers)
    topic = create_topic(three_brokers, "t", 1, 3, FILES)
    path = f"{topic.folder}/_segments/0/{gone_id()}-1.parquet"
    copies = [plant(cluster, path, broker_id=each) for each in (1, 2, 3)]
    rows = [{"topic_id": topic.topic_id, "log_dir_id": each, "path": path} for each in cluster.log_dirs()]
    cluster.store.transact(lambda connection: connection.execute(t.retired_copy.insert(), rows))

    def left():
        return cluster.store.read(lambda connection: len(connection.execute(sa.select(t.retired_copy)).all()))

    def delete_until(stopping):
        return delete_left_copies(cluster, CleanableLogDirs.of(cluster, stopping), topic).files

    with monkeypatch.context() as patch:
        patch.setattr(CleanableLogDirs, "publish", lambda *_: pytest.fail("the run is to stop"))
        assert (delete_until(lambda: True), left()) == (0, 3)
    assert (delete_until(lambda: not all(map(Path.exists, copies))), left()) == (1, 2)
    assert (delete_until(lambda: False), left()) == (2, 0)
    assert not any(map(Path.exists, copies))


def test_a_run_that_is_to_stop_leaves_the_other_deleted_topics_to_the_next_run(cluster):
    topics = [create_topic(cluster, name) for name in "ab"]
    folders = [plant(cluster, f"{topic.folder}/file").parent for topic in topics]
    for topic in topics:
        delete_topic(cluster, topic.name)
    change(cluster, t.retired_file.update().values(retired_ms=clock.wall_ms() - 30 * DAY_MS))
    clean_until(cluster, lambda: not all(map(Path.exists, folders)))
    assert sum(map(Path.exists, folders)) == 1
    clean(cluster)
    assert not any(map(Path.exists, folders))


def test_clean_up_in_object_storage(tmp_path, s3_uri):
    with Cluster.init(str(tmp_path / "cluster"), log_dir=s3_uri) as cluster:
        log = ClientLog(cluster)
        topic, doomed = create_topic(cluster, "t", configs=AT_ONCE), create_topic(cluster, "doomed", configs=FILES)
        append(log, topic, "old")
        append(log, topic, "young", timestamp_ms=clock.wall_ms())
        append(log, doomed, "a")
        log.close()
        [info] = cluster.log_dirs().values()
        log_dir = LogDir(info.uri)

        def put(path):
            with_content = log_dir.create(path)
            with_content.write(b"x")
            with_content.commit()
            return path

        orphan = put(f"{topic.folder}/_segments/0/{gone_id()}-0.parquet")
        young = put(f"stray-00000001/_segments/0/{gone_id()}-0.parquet")
        foreign = put(f"{topic.folder}/_segments/0/mine.parquet")
        delete_topic(cluster, "doomed")
        change(cluster, t.retired_file.update().values(retired_ms=0))
        apply_retention(cluster.of(topic), topic)
        found = clean(cluster)
        assert (found["t"].before.files, found[None].before.files) == (2, 1 + 2)
        left = log_dir.list_files(f"{topic.folder}/_segments")
        assert sorted(left) == sorted([foreign, *(segment_path(topic.folder, 0, name) for name in named(cluster))])
        assert log_dir.list_files(doomed.folder) == {}
        assert log_dir.sizes([orphan, young]) == [None, 1]
        assert log_dir.read_marker() is not None
        assert retired(cluster) == []
        assert LogDirId(info.log_dir_id) in cluster.log_dirs()
        everything_fits(cluster)
