"""Reads while log dirs are missing, swapped, replaced, unavailable or read-only, without a write into a wrong one."""

import contextlib
import logging
import subprocess
from dataclasses import replace
from uuid import uuid4

import pytest

from spark_log.cluster.log_dir import LogDir
from spark_log.errors import CorruptRecordError, LogDirMismatchError, StorageUnavailableError
from spark_log.log.segments import fetcher as fetcher_module
from spark_log.log.segments.fetcher import Fetcher
from spark_log.metadata import tables as t
from tests.support.disk_faults import needs_root
from tests.support.records import ranges_of
from tests.support.replicas import RECORDS, ROWS, SEGMENTS, ThreeReplicas
from tests.support.s3 import give_up_at_once
from tests.support.stores import change

# Whole log dirs


def tree(folder):
    return {str(path.relative_to(folder)): path.is_file() and path.read_bytes() for path in folder.rglob("*")}


def swap(one, two):
    one.rename(one.with_name("swapped"))
    two.rename(one)
    one.with_name("swapped").rename(two)


@contextlib.contextmanager
def read_only(folder):
    """Mounts the folder over itself read-only."""
    subprocess.run(["mount", "--bind", str(folder), str(folder)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(folder)], check=True)
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_missing_log_dir_is_skipped(local, folders):
    """Moved away, and then an empty folder in its place: readers skip it and write nothing there."""
    for broker_id in (1, 2):
        folders[broker_id].rename(folders[broker_id].with_name(f"away-{broker_id}"))
    folders[2].mkdir()
    for read in (local.read, local.consume):
        assert read() == local.expected
    assert not folders[1].exists() and tree(folders[2]) == {}
    folders[2].rmdir()
    for broker_id in (1, 2):
        folders[broker_id].with_name(f"away-{broker_id}").rename(folders[broker_id])
    assert local.read() == local.expected


def test_swapped_log_dirs_are_not_written_to(local, folders):
    """Each has the files of the other one, some of them missing: neither shows the expected id."""
    local.put_last(3)
    for file in local.files(1, 2):
        file.damage("missing")
    swap(folders[1], folders[2])
    before = {number: tree(folders[number]) for number in (1, 2)}
    for read in (local.read, local.consume):
        assert read() == local.expected
    assert {number: tree(folders[number]) for number in (1, 2)} == before
    swap(folders[1], folders[2])
    assert local.read() == local.expected
    local.assert_whole()


def test_swapped_log_dirs_of_an_open_reader_are_not_written_to(local, folders):
    """Missing files are not written into the wrong log dir."""
    plan = local.log.plan(ranges_of(local.log, local.topic))
    fetcher = Fetcher(plan.log_dirs)
    slices = [piece._replace(log_dir_ids=(1, 2, 3)) for piece in plan.slices]  # log dirs are numbered as their brokers
    assert sum(batch.num_rows for batch in fetcher.read(slices[:1], ROWS)) == RECORDS
    for file in local.files(1, 2):
        file.damage("missing")
    swap(folders[1], folders[2])
    before = {number: tree(folders[number]) for number in (1, 2)}
    rows = [row["value"].decode() for batch in fetcher.read(slices[1:], ROWS) for row in batch.to_pylist()]
    assert rows == [value for _, _, value in local.expected[RECORDS:]]
    assert {number: tree(folders[number]) for number in (1, 2)} == before
    assert fetcher.repaired == 0


def test_a_log_dir_whose_id_changes_during_a_read_is_not_written_to(stored):
    """The location shows another id after the reader has checked it: missing files are not repaired there."""
    plan = stored.log.plan(ranges_of(stored.log, stored.topic))
    fetcher = Fetcher(plan.log_dirs)
    slices = [piece._replace(log_dir_ids=(1, 2, 3)) for piece in plan.slices]
    assert sum(batch.num_rows for batch in fetcher.read(slices[:1], ROWS)) == RECORDS
    missing = stored.files(1)
    for file in missing:
        file.damage("missing")
    log_dir = LogDir(plan.log_dirs[1].uri)
    log_dir.write_marker(replace(log_dir.read_marker(), uuid="another"))
    rows = [row["value"].decode() for batch in fetcher.read(slices[1:], ROWS) for row in batch.to_pylist()]
    assert rows == [value for _, _, value in stored.expected[RECORDS:]]
    assert untouched(missing)
    assert fetcher.repaired == 0


def test_an_unavailable_log_dir_is_tried_again_later(local, folders, monkeypatch):
    """At first it is tried after all others, which costs little time; after a pause it is tried in the usual order."""
    plan = local.log.plan(ranges_of(local.log, local.topic))
    fetcher = Fetcher(plan.log_dirs)
    slices = [piece._replace(log_dir_ids=(1, 2, 3)) for piece in plan.slices]

    def read():
        return sum(batch.num_rows for batch in fetcher.read(slices, ROWS))

    away = folders[1].with_name("away")
    folders[1].rename(away)
    assert not fetcher.renewal_due(slices)
    assert read() == read() == len(local.expected)
    assert fetcher.passed_over == 1, "once, not for each segment"
    away.rename(folders[1])
    for file in local.files(1):
        file.damage("missing")
    assert read() == len(local.expected)
    assert fetcher.passed_over == 1
    assert not fetcher.renewal_due(slices)
    monkeypatch.setattr(fetcher_module, "_AWAY_S", 0.0)
    assert fetcher.renewal_due(slices)
    fetcher.renew(lambda: plan.log_dirs)
    assert not fetcher.renewal_due(slices)
    assert read() == len(local.expected)
    assert (fetcher.passed_over, fetcher.repaired) == (1 + SEGMENTS, SEGMENTS)
    local.assert_whole()


def test_a_fetcher_is_renewed_for_new_log_dirs(local):
    plan = local.log.plan(ranges_of(local.log, local.topic))
    two = {number: info for number, info in plan.log_dirs.items() if number != 2}
    fetcher = Fetcher(two)
    assert fetcher.renewal_due(plan.slices)
    slices = [piece._replace(log_dir_ids=(2, 1, 3)) for piece in plan.slices]
    assert sum(batch.num_rows for batch in fetcher.read(slices, ROWS)) == len(local.expected)
    fetcher.renew(lambda: plan.log_dirs)
    assert not fetcher.renewal_due(plan.slices)


def test_a_log_dir_that_was_replaced_meanwhile_is_looked_up_again(local, folders):
    """A consumer runs on while a log dir comes back empty and is filled again: it has another id then."""
    plan = local.log.plan(ranges_of(local.log, local.topic))
    fetcher = Fetcher({})
    fetcher.renew(local.cluster.log_dirs)
    slices = [piece._replace(log_dir_ids=(1,)) for piece in plan.slices]
    log_dir = LogDir(plan.log_dirs[1].uri)
    log_dir.write_marker(replace(log_dir.read_marker(), uuid="another"))
    with pytest.raises(LogDirMismatchError, match="swapped"):
        list(fetcher.read(slices, ROWS))
    change(local.cluster, t.log_dir.update().where(t.log_dir.c.log_dir_id == 1).values(uuid="another"))
    assert sum(batch.num_rows for batch in fetcher.read(slices, ROWS)) == len(local.expected)


def test_an_error_names_the_segment_if_no_log_dir_is_available(local, folders):
    for folder in folders.values():
        folder.rename(folder.with_name(f"{folder.name}-away"))
    with pytest.raises(CorruptRecordError, match=r"t-0: no replica has segment .*not mounted"):
        local.read()


def test_unavailable_object_storage_is_skipped(tmp_path, folders, s3_server, monkeypatch):
    """A log dir there is skipped once for all segments; without another replica the error is retriable."""
    give_up_at_once(monkeypatch)
    uris = {1: str(folders[1]), 2: str(folders[2]), 3: s3_server.uri(uuid4().hex)}
    mixed = ThreeReplicas(str(tmp_path / "cluster"), uris)
    for broker_id in (1, 2):
        mixed.put_last(broker_id)
    nowhere = uris[3].replace(s3_server.host.replace(":", "%3A"), "127.0.0.1%3A1")
    change(mixed.cluster, t.log_dir.update().where(t.log_dir.c.broker_id == 3).values(uri=nowhere))
    plan = mixed.log.plan(ranges_of(mixed.log, mixed.topic))
    assert {piece.log_dir_ids[0] for piece in plan.slices} == {3}
    fetcher = Fetcher(plan.log_dirs)
    assert sum(batch.num_rows for batch in fetcher.read(plan.slices, ROWS)) == len(mixed.expected)
    assert (fetcher.passed_over, fetcher.repaired) == (1, 0)
    for broker_id in (1, 2):
        folders[broker_id].rename(folders[broker_id].with_name(f"away-{broker_id}"))
    with pytest.raises(StorageUnavailableError, match="t-0: no replica has segment") as raised:
        mixed.read()
    assert "test-secret-key" not in str(raised.value)
    mixed.close()


# Impossible repairs


@needs_root
def test_a_read_only_log_dir_is_not_repaired(local, folders, caplog):
    local.put_last(3)
    for file in local.files(1, 2):
        file.damage("bit in a page")
    damaged = {number: tree(folders[number]) for number in (1, 2)}
    with contextlib.ExitStack() as mounts, caplog.at_level(logging.WARNING):
        for number in (1, 2):
            mounts.enter_context(read_only(folders[number]))
        for read in (local.read, local.consume):
            assert read() == local.expected
            said = [record.getMessage() for record in caplog.records if "not repaired" in record.getMessage()]
            assert len(said) == 2, "once for each log dir"
            assert all("Read-only file system" in message for message in said)
            caplog.clear()
    assert {number: tree(folders[number]) for number in (1, 2)} == damaged
    assert local.read() == local.expected
    local.assert_whole()


def untouched(files):
    return [file.read() for file in files] == [None] * len(files)
