"""Clean-up of files and folders that no row names, of files in use, and beside appends and deletions."""

import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing

import pytest
import sqlalchemy as sa

from spark_log import clock
from spark_log.cluster.files import new_file
from spark_log.cluster.log_dir import LogDir, segment_path
from spark_log.errors import StorageUnavailableError, WriteIdExpiredError
from spark_log.log.append import write_ids
from spark_log.log.append.rules import Appended, Rejected
from spark_log.log.log import Records
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.removal.cleanable_log_dirs import CleanableLogDirs
from spark_log.maintenance.removal.orphans import GRACE_MS, delete_orphans
from spark_log.metadata import tables as t
from spark_log.replication.controller.topic_operations import create_topic, delete_topic
from spark_log.tables.publication import publish
from tests.support.records import read_all, table
from tests.support.replicas import folder_of
from tests.support.resources import clean, files, folders_of, named, plant, retired
from tests.support.stores import change, topics_view
from tests.support.table_checks import assert_delta_is_the_log, assert_replicas_are_whole

pytestmark = pytest.mark.delta


DAY_MS = 24 * 60 * 60 * 1000


FILES = {"inline.max.bytes": "0"}


OLD_MS = 1_000_000_000_000


def append(log, topic, *values, timestamp_ms=OLD_MS):
    [outcome] = log.append(topic, [Records(0, table(*values, timestamp_ms=timestamp_ms))])
    return outcome


def gone_id():
    return os.urandom(16).hex()


def everything_fits(cluster):
    assert_delta_is_the_log(cluster)
    assert_replicas_are_whole(cluster)


def test_orphans_are_deleted_once_no_append_can_name_them(cluster, log):
    topic = create_topic(cluster, "t", configs=FILES)
    append(log, topic, "a", timestamp_ms=clock.wall_ms())
    write_id = write_ids.register(topics_view(cluster).store, "test", 60_000)
    orphan = plant(cluster, segment_path(topic.folder, 0, f"{write_id}-0.parquet"), b"12345")
    half = plant(cluster, f"{topic.folder}/_segments/0/.{write_id}-1.parquet.tmp", b"123")
    assert clean(cluster) == {}
    change(cluster, t.write_id.update().where(t.write_id.c.write_id == write_id).values(until_ms=0))
    report = clean(cluster)["t"]
    assert (report.before.files, report.before.bytes) == (2, 8)
    assert not orphan.exists()
    assert not half.exists()
    assert not write_ids.renew(topics_view(cluster).store, write_id, 60_000)
    [outcome] = [append(log, topic, "b", timestamp_ms=clock.wall_ms())]
    assert outcome == Appended(1, 2), "who has a write id appends under it"
    everything_fits(cluster)


@pytest.mark.on_data_store
@pytest.mark.on_sqlite
def test_foreign_files_and_files_in_use_are_kept(cluster, log, tmp_path):
    """Files whose names are not ours, and our files that are still in use."""
    topic = create_topic(cluster, "t", 2, configs=FILES)
    append(log, topic, "a", timestamp_ms=clock.wall_ms())
    here, young, old = f"{topic.folder}/_segments/0", DAY_MS - 60_000, DAY_MS + 60_000
    pending = f"{gone_id()}-0.parquet"
    facts = {"producer_id": 1, "position": 1, "topic_id": topic.topic_id, "partition": 0, "facts": "{}"}
    change(cluster, sa.insert(t.transaction_segment).values(name=pending, inline=False, **facts))
    stay = [
        plant(cluster, path, age_ms=30 * DAY_MS)
        for path in (
            "notes.txt", f"{topic.folder}/part-0.parquet", f"{topic.folder}/_delta_log/{gone_id()}-0.parquet",
            f"{topic.folder}/{gone_id()}-0.parquet", f"{here}/_SUCCESS", f"{here}/part-0.parquet",
            f"{here}/deeper/{gone_id()}-0.parquet", f"{topic.folder}/_segments/x/{gone_id()}-0.parquet",
            f"{here}/{pending}", f"other-0123abcd/{gone_id()}-0.parquet", f"{gone_id()}-0.parquet",
        )
    ]  # fmt: skip
    stay.append(plant(cluster, f"{here}/.{gone_id()}-0.parquet-0123456789ab.tmp", age_ms=young))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    outside = elsewhere / f"{gone_id()}-0.parquet"
    outside.write_text("x")
    (folder_of(cluster, 1) / topic.folder / "_segments" / "1").symlink_to(elsewhere)
    goes = plant(cluster, f"{here}/.{gone_id()}-0.parquet-0123456789ab.tmp", age_ms=old)
    assert GRACE_MS == DAY_MS
    report = clean(cluster)["t"]
    assert "symbolic link" in "".join(report.notes)
    assert all(path.exists() for path in [*stay, outside])
    assert goes.exists(), "the whole topic waits in this log dir until an operator has checked the link"
    (folder_of(cluster, 1) / topic.folder / "_segments" / "1").unlink()
    assert clean(cluster)["t"].before.files == 1
    assert not goes.exists()
    assert all(path.exists() for path in [*stay, outside])
    everything_fits(cluster)


@pytest.mark.on_data_store
@pytest.mark.on_sqlite
def test_folders_of_no_known_topic_are_deleted_if_they_are_ours_and_old(cluster, log):
    topic = create_topic(cluster, "t", configs=FILES)
    append(log, topic, "a", timestamp_ms=clock.wall_ms())
    held = write_ids.register(topics_view(cluster).store, "test", 60_000)
    old = 2 * DAY_MS
    contents = {
        "gone-00000001": {f"_segments/0/{gone_id()}-0.parquet": old, f"_segments/1/.{gone_id()}-0.parquet.tmp": old},
        "young-00000002": {f"_segments/0/{gone_id()}-0.parquet": 0, f"_segments/0/{gone_id()}-1.parquet": old},
        "held-00000003": {f"_segments/0/{held}-0.parquet": old},
        "foreign-00000004": {f"_segments/0/{gone_id()}-0.parquet": old, "_segments/0/mine.parquet": old},
        "table-00000005": {f"_segments/0/{gone_id()}-0.parquet": old, "_delta_log/00000000000000000000.json": old},
        "backup-20260101": {"data.bin": old},
        "no_form": {f"_segments/0/{gone_id()}-0.parquet": old},
    }
    for folder, paths in contents.items():
        for path, age_ms in paths.items():
            plant(cluster, f"{folder}/{path}", age_ms=age_ms)
    (folder_of(cluster, 1) / "empty-20260101").mkdir()
    found = clean(cluster)
    assert list(found) == [None]
    assert (found[None].before.files, found[None].before.bytes) == (2, 2)
    left = set(folders_of(folder_of(cluster, 1)))
    assert left == {topic.folder, "empty-20260101", *contents} - {"gone-00000001"}
    assert clean(cluster) == {}


@pytest.mark.on_data_store
@pytest.mark.on_sqlite
def test_a_damaged_folder_does_not_stop_the_clean_up_of_others_in_its_log_dir(cluster, log, monkeypatch):
    names = ("1-damaged", "2-whole", "3-damaged-deleted", "4-deleted")
    damaged, whole, damaged_deleted, deleted = (create_topic(cluster, name, configs=FILES) for name in names)
    for topic in (damaged_deleted, deleted):
        append(log, topic, "a")
        delete_topic(cluster, topic.name)
    log.close()
    clean(cluster)
    change(cluster, t.retired_file.update().values(retired_ms=0))
    orphan = plant(cluster, segment_path(whole.folder, 0, f"{gone_id()}-0.parquet"))
    plant(cluster, f"{damaged.folder}/_segments")
    unknown = [plant(cluster, segment_path(f"{name}-00000001", 0, f"{gone_id()}-0.parquet"), age_ms=2 * DAY_MS)
               for name in ("5-damaged-unknown", "6-unknown")]  # fmt: skip
    entries = LogDir.entries

    def failing(self, folder=""):
        if folder.startswith(("3-damaged", "5-damaged")):
            raise StorageUnavailableError(f"{folder} cannot be read")
        return entries(self, folder)

    monkeypatch.setattr(LogDir, "entries", failing)
    reports = clean(cluster)
    assert not orphan.exists() and [path.exists() for path in unknown] == [True, False]
    assert retired(cluster) == [damaged_deleted.folder]
    assert "_segments" in "".join(reports[damaged.name].notes)
    assert {note.partition("-00000001")[0].partition("-")[0] for note in reports[None].notes} == {"3", "5"}


@pytest.mark.on_data_store
@pytest.mark.on_sqlite
def test_folders_of_known_topics_without_a_delta_table_are_kept(cluster, log):
    """They look like folders of unknown topics."""
    for name in ("live", "deleted"):
        topic = create_topic(cluster, name, configs=FILES)
        append(log, topic, "a", timestamp_ms=clock.wall_ms())
        shutil.rmtree(folder_of(cluster, 1) / topic.folder / "_delta_log")
        [file] = (folder_of(cluster, 1) / topic.folder).rglob("*.parquet")
        os.utime(file, (1, 1))
    log.close()
    delete_topic(cluster, "deleted")
    assert clean(cluster) == {}
    assert len(list(folder_of(cluster, 1).rglob("*.parquet"))) == 2


def test_files_of_a_topic_deleted_during_the_listing_are_kept_for_readers(cluster, log):
    """Its readers keep their time, although no row names its files any more."""
    topic = create_topic(cluster, "t", configs=FILES)
    append(log, topic, "a")
    log.close()
    delete_topic(cluster, "t")
    assert delete_orphans(cluster, CleanableLogDirs.of(cluster), topic).files == 0
    assert len(files(folder_of(cluster, 1), topic)) == 1


def test_an_unfinished_file_that_clean_up_deletes_fails_its_append(cluster, log, monkeypatch):
    """The writer learns that its write id has expired, not that the log dir failed; its next append has a new one."""
    topic = create_topic(cluster, "t", configs=FILES)

    def expire_and_clean(name):
        if name == "file.temporary-written":
            change(cluster, t.write_id.update().values(until_ms=0))
            assert clean(cluster)["t"].before.files == 1

    with monkeypatch.context() as patch:
        patch.setattr(new_file, "failpoint", expire_and_clean)
        with pytest.raises(WriteIdExpiredError, match="nothing was appended"):
            append(log, topic, "lost", timestamp_ms=clock.wall_ms())
    append(log, topic, "a", timestamp_ms=clock.wall_ms())
    assert read_all(log, topic) == [(0, 0, "a")]


def test_concurrent_appends_lose_no_file_that_they_named(cluster, cluster_address):
    """Write ids that expire at once: an append either commits before clean-up or is refused."""
    topic = create_topic(cluster, "t", 2, configs={**FILES, "segment.bytes": "14"})
    done = threading.Event()
    outcomes = []

    def write(partition):
        with closing(ClientLog(cluster)) as log:
            for number in range(15):
                try:
                    [outcome] = log.append(
                        topic, [Records(partition, table(f"{number}", timestamp_ms=clock.wall_ms()))]
                    )
                    outcomes.append(outcome)
                except WriteIdExpiredError as error:
                    outcomes.append(Rejected(error))

    def expire_and_clean():
        while not done.is_set():
            change(cluster, t.write_id.update().values(until_ms=0))
            clean(cluster)

    with ThreadPoolExecutor(3) as pool:
        beside = pool.submit(expire_and_clean)
        writers = [pool.submit(write, partition) for partition in (0, 1)]
        wait(writers)
        done.set()
    assert [each.result() for each in (*writers, beside)] == [None] * 3
    appended = [outcome for outcome in outcomes if isinstance(outcome, Appended)]
    log = ClientLog(cluster)
    assert len(read_all(log, topic)) == len(appended)
    publish(cluster, topic)
    everything_fits(cluster)
    clean(cluster)
    assert files(folder_of(cluster, 1), topic) == named(cluster), "and nothing else is left"
