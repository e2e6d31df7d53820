"""Reads of a topic with three replicas: with any damage in two of them, every record is read once and in order, damaged
files are repaired from good ones, and a reader prefers its own rack.
"""

import contextlib
import logging
import os
import resource
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import kafka
import pytest

from spark_log import Consumer
from spark_log.cluster.brokers import add_broker
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.log_dir import LogDir
from spark_log.errors import CorruptRecordError, LogDirMismatchError, StorageUnavailableError
from spark_log.ids import OffsetRange, TopicPartition
from spark_log.log.append.rules import Appended
from spark_log.log.log import Records
from spark_log.log.records.schema import read_schema
from spark_log.log.segments import fetcher as fetcher_module
from spark_log.log.segments.fetcher import Fetcher
from spark_log.maintenance.client_log import ClientLog
from spark_log.metadata import tables as t
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.disk_faults import DAMAGES, needs_root, replicas_of
from tests.support.python_process import killed_at
from tests.support.records import NOON_MS, ranges_of, table
from tests.support.s3 import give_up_at_once
from tests.support.stores import change

SEGMENTS, RECORDS = 3, 100
RACKS = {2: "near", 3: "far"}
ROWS = read_schema(columns=["partition", "offset", "value"])


class Replicated:
    """Topic t: one partition, complete in the log dirs of brokers 1, 2 (rack near) and 3 (rack far)."""

    def __init__(self, address, uris):
        self.address = address
        self.uris = uris
        self.cluster = Cluster.init(address, log_dir=uris[1])
        for broker_id in (2, 3):
            add_broker(self.cluster, broker_id, [uris[broker_id]], RACKS[broker_id])
        self.log = ClientLog(self.cluster)
        self.topic = create_topic(self.cluster, "t", 1, 3, configs={"inline.max.bytes": "0"})
        self.expected = []
        for segment in range(SEGMENTS):
            numbers = range(segment * RECORDS, (segment + 1) * RECORDS)
            values = [f"{number}-{uuid4().hex}" for number in numbers]
            (outcome,) = self.log.append(self.topic, [Records(0, table(*values, timestamp_ms=NOON_MS + segment))])
            assert isinstance(outcome, Appended), outcome
            self.expected += [(0, number, value) for number, value in zip(numbers, values, strict=True)]

    def close(self):
        self.log.close()
        self.cluster.close()

    def replicas(self, rack=None):
        """The files of each segment, in reading order."""
        return replicas_of(self.cluster, self.log, self.topic, rack)

    def files(self, *broker_ids):
        return [file for files in self.replicas() for file in files if file.broker_id in broker_ids]

    def put_last(self, broker_id):
        """Readers try this replica after the others: the metadata list it as out of sync."""
        change(self.cluster, t.replica.update().where(t.replica.c.broker_id == broker_id).values(in_sync=False))

    def assert_whole(self):
        for files in self.replicas():
            assert len(files) == 3 and files[0].read() is not None
            assert all(file.read() == files[0].read() for file in files)

    def read(self, rack=None):
        batches = self.log.read(ranges_of(self.log, self.topic), ROWS, rack)
        return [(r["partition"], r["offset"], r["value"].decode()) for batch in batches for r in batch.to_pylist()]

    def consume(self, rack=""):
        consumer = Consumer(cluster=self.address, auto_offset_reset="earliest", client_rack=rack)
        consumer.assign([kafka.TopicPartition("t", 0)])
        rows, deadline = [], time.monotonic() + 60
        while len(rows) < len(self.expected):
            assert time.monotonic() < deadline, rows
            for records in consumer.poll(1_000).values():
                rows += [(record.partition, record.offset, record.value.decode()) for record in records]
        consumer.close()
        return rows


@pytest.fixture
def cluster_address(request, tmp_path):
    """On SQLite, unless a test is `on_both_stores`: damage and repair are in log dirs, the metadata is only read."""
    if getattr(request, "param", "sqlite") == "sqlite":
        return str(tmp_path / "cluster")
    return request.getfixturevalue("postgres_server").create_prepared_database()


on_both_stores = pytest.mark.parametrize("cluster_address", ["sqlite", "postgres"], indirect=True)


@pytest.fixture
def folders(tmp_path):
    return {broker_id: tmp_path / "log-dirs" / f"broker-{broker_id}" for broker_id in (1, 2, 3)}


@pytest.fixture
def local(cluster_address, folders):
    """The topic with its log dirs in three folders."""
    made = Replicated(cluster_address, {broker_id: str(folder) for broker_id, folder in folders.items()})
    yield made
    made.close()


KINDS_BY_STORAGE = [
    *(("local", kind) for kind in DAMAGES),
    *(("s3", kind) for kind in ("missing", "truncated", "zeroed")),
]
"""In object storage: no object, a short one, and wrong bytes, which are checked alike wherever they are from."""


@pytest.fixture(params=["local", "s3"])
def stored(request, cluster_address, folders):
    """The topic with its log dirs in three folders, and in three locations of object storage."""
    uris = {broker_id: str(folder) for broker_id, folder in folders.items()}
    if request.param == "s3":
        server, prefix = request.getfixturevalue("s3_server"), uuid4().hex
        uris = {broker_id: server.uri(f"{prefix}/broker-{broker_id}") for broker_id in (1, 2, 3)}
    made = Replicated(cluster_address, uris)
    yield made
    made.close()


def contents(replicas):
    return [[file.read() for file in files] for files in replicas]


# Damage


@pytest.mark.parametrize(("stored", "kind"), KINDS_BY_STORAGE, indirect=["stored"])
def test_two_damaged_replicas_are_skipped_and_repaired(stored, kind):
    replicas = stored.replicas()
    whole = contents(replicas)
    assert all(files == [files[0]] * 3 for files in whole), "replicas are equal to the byte"
    for read in (stored.read, stored.consume):
        for files in replicas:
            files[0].damage(kind)
            files[1].damage(kind)
        assert contents(replicas) != whole
        assert read() == stored.expected
        assert contents(replicas) == whole


@pytest.mark.parametrize("kind", ["missing", "zeroed", "bit in the footer"])
def test_a_search_by_timestamp_skips_and_repairs_damaged_replicas(stored, kind):
    replicas = stored.replicas()
    whole = contents(replicas)
    for files in replicas:
        files[0].damage(kind)
        files[1].damage(kind)
    found = {at: stored.log.offsets_for_times(stored.topic, {0: NOON_MS + at})[0] for at in range(SEGMENTS + 1)}
    assert found == {**{at: at * RECORDS for at in range(SEGMENTS)}, SEGMENTS: None}
    assert contents(replicas) == whole


def test_a_replica_is_damaged_in_the_middle_of_a_read(cluster_address, folders):
    """Records of the first row groups are not returned again, and no record is missing."""
    stored = Replicated(cluster_address, {number: str(folder) for number, folder in folders.items()})
    values = [f"{number}" for number in range(200_000)]  # four row groups
    stored.log.append(stored.topic, [Records(0, table(*values))])
    first = SEGMENTS * RECORDS
    here = {TopicPartition("t", 0): OffsetRange(first + 7, first + 200_000)}
    files = stored.replicas()[-1]
    whole = [file.read() for file in files]
    for file in files[:2]:
        file.damage("bit in a page")
    plan = stored.log.plan(here)
    fetcher = Fetcher(plan.log_dirs)
    batches = fetcher.read(plan.slices, ROWS)
    rows = next(batches).to_pylist()
    assert fetcher.passed_over == 0, "the first row group is good"
    assert files[0].read() != whole[0]
    rows += [row for batch in batches for row in batch.to_pylist()]
    assert [row["offset"] for row in rows] == list(range(first + 7, first + 200_000))
    assert [row["value"].decode() for row in rows] == values[7:]
    assert (fetcher.passed_over, fetcher.repaired) == (2, 2)
    assert [file.read() for file in files] == whole
    stored.close()


@pytest.mark.parametrize("kind", ["missing", "zeroed"])
def test_a_segment_without_a_good_replica_is_an_error_that_names_it(stored, kind):
    files = stored.replicas()[1]
    for file in files:
        file.damage(kind)
    damaged = [file.read() for file in files]
    batches = stored.log.read(ranges_of(stored.log, stored.topic), ROWS)
    rows = next(batches).to_pylist()
    with pytest.raises(CorruptRecordError, match=rf"t-0: no replica has segment {files[0].name}.*broker-1.*") as raised:
        next(batches)
    assert "broker-2" in str(raised.value) and "broker-3" in str(raised.value)
    assert "test-secret-key" not in str(raised.value)
    assert [row["offset"] for row in rows] == list(range(RECORDS)), "what came before"
    assert [file.read() for file in files] == damaged, "nothing was made of what is not whole"
    files[2].write(None)
    with pytest.raises(CorruptRecordError):
        stored.consume()


def test_a_source_with_other_damage_repairs_nothing(stored, caplog):
    """The read of the second replica succeeds, but it covers only a part: its bytes do not match the checksum."""
    first, second, third = stored.replicas()[0]
    first.damage("missing")
    second.damage("bit in a page")
    third.damage("missing")
    here = {TopicPartition("t", 0): OffsetRange(0, RECORDS)}
    keys = read_schema(columns=["offset", "key"])
    with caplog.at_level(logging.WARNING):
        offsets = [offset for batch in stored.log.read(here, keys) for offset in batch.column("offset").to_pylist()]
    assert offsets == list(range(RECORDS))
    assert first.read() is None and third.read() is None
    assert "not repaired" in caplog.text and "not whole itself" in caplog.text


def test_bad_replicas_and_repairs_are_logged_and_counted(stored, caplog):
    replicas = stored.replicas()
    replicas[0][0].damage("truncated")
    consumer = Consumer(cluster=stored.address, auto_offset_reset="earliest")
    consumer.assign([kafka.TopicPartition("t", 0)])
    with caplog.at_level(logging.WARNING):
        while consumer.position(kafka.TopicPartition("t", 0)) < len(stored.expected):
            consumer.poll(1_000)
    (message,) = [record.getMessage() for record in caplog.records if record.name == "spark_log.log.segments.fetcher"]
    assert replicas[0][0].name in message and "repaired from" in message and "expected" in message
    assert "test-secret-key" not in message
    counts = consumer.metrics()["consumer-fetch-manager-metrics"]
    assert (counts["replicas-passed-over-total"], counts["replicas-repaired-total"]) == (1, 1)
    consumer.close()


def test_good_replicas_are_each_read_once(stored, monkeypatch):
    opened = []
    original = fetcher_module.segment_open.open_segment
    monkeypatch.setattr(
        fetcher_module.segment_open,
        "open_segment",
        lambda file, expected: opened.append(expected.path) or original(file, expected),
    )
    plan = stored.log.plan(ranges_of(stored.log, stored.topic))
    fetcher = Fetcher(plan.log_dirs)
    assert sum(batch.num_rows for batch in fetcher.read(plan.slices, ROWS)) == len(stored.expected)
    assert len(opened) == SEGMENTS
    assert (fetcher.passed_over, fetcher.repaired) == (0, 0)


def test_many_readers_repair_at_once(stored):
    replicas = stored.replicas()
    whole = contents(replicas)
    for files in replicas:
        files[0].damage("zeroed")
        files[1].damage("missing")
    started = threading.Barrier(6)

    def read(_):
        started.wait()
        return stored.read()

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(read, range(6))) == [stored.expected] * 6
    assert contents(replicas) == whole
    if "://" not in stored.uris[1]:
        assert not list(Path(stored.uris[1]).parent.rglob("*.tmp"))


@pytest.mark.parametrize("point", ["file.temporary-written", "file.renamed"])
def test_a_reader_killed_during_a_repair(local, point):
    replicas = local.replicas()
    whole = contents(replicas)
    replicas[0][0].damage("truncated")
    damaged = replicas[0][0].read()
    program = """if True:
        import sys
        from spark_log.cluster.cluster import Cluster
        from spark_log.maintenance.client_log import ClientLog
        from tests.support.records import read_all
        log = ClientLog(Cluster.open(sys.argv[1]))
        read_all(log, log.find_topic("t"))
        """
    killed_at(point, "-c", program, local.address)
    assert replicas[0][0].read() == (damaged if point == "file.temporary-written" else whole[0][0])
    assert local.read() == local.expected
    assert contents(replicas) == whole


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
    mixed = Replicated(str(tmp_path / "cluster"), uris)
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


def test_reads_succeed_without_room_for_a_repair(cluster_address, folders, caplog):
    """The kernel refuses writes, as a full disk does: reading continues, and no partial file stays."""
    local = Replicated(cluster_address, {number: str(folder) for number, folder in folders.items()})
    values = [os.urandom(50_000).hex() for _ in range(20)]
    local.log.append(local.topic, [Records(0, table(*values))])
    local.expected += [(0, SEGMENTS * RECORDS + number, value) for number, value in enumerate(values)]
    large = local.replicas()[-1]
    large[0].damage("truncated")
    damaged = large[0].read()
    ranges, limits = ranges_of(local.log, local.topic), resource.getrlimit(resource.RLIMIT_FSIZE)
    plan = local.log.plan(ranges)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, limits[1]))
    try:
        fetcher = Fetcher(plan.log_dirs)
        with caplog.at_level(logging.WARNING):
            rows = [row["value"].decode() for batch in fetcher.read(plan.slices, ROWS) for row in batch.to_pylist()]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert rows == [value for _, _, value in local.expected]
    assert (fetcher.passed_over, fetcher.repaired) == (1, 0)
    assert "not repaired" in caplog.text and "too large" in caplog.text
    assert large[0].read() == damaged
    assert not list(folders[1].parent.rglob("*.tmp"))
    assert local.read() == local.expected
    local.assert_whole()
    local.close()


def test_symbolic_links_into_or_out_of_a_log_dir_are_not_followed(local, tmp_path):
    """Its replica is skipped; the target of the link is neither read nor written."""
    first = local.replicas()[0][0]
    (elsewhere := tmp_path / "elsewhere").write_bytes(b"not ours")
    (path,) = Path(local.uris[first.broker_id]).rglob(first.name)
    path.unlink()
    path.symlink_to(elsewhere)
    assert local.read() == local.expected
    assert path.is_symlink() and elsewhere.read_bytes() == b"not ours"


# Choice of the replica


def only_in(stored, broker_id):
    """Only one broker's log dir keeps the topic's files: a reader of another log dir would repair it."""
    missing = [file for file in stored.files(1, 2, 3) if file.broker_id != broker_id]
    for file in missing:
        file.damage("missing")
    return missing


def untouched(files):
    return [file.read() for file in files] == [None] * len(files)


@pytest.mark.parametrize(
    ("cluster_address", "stored"), [("sqlite", "local"), ("postgres", "local"), ("sqlite", "s3")], indirect=True
)
@pytest.mark.parametrize("broker_id", RACKS)
def test_a_reader_opens_the_replica_in_its_rack_and_no_other(stored, broker_id):
    rack = RACKS[broker_id]
    missing = only_in(stored, broker_id)
    assert stored.read(rack) == stored.consume(rack) == stored.expected
    found = {at: stored.log.offsets_for_times(stored.topic, {0: NOON_MS + at}, rack)[0] for at in range(SEGMENTS)}
    assert found == {at: at * RECORDS for at in range(SEGMENTS)}
    consumer = Consumer(cluster=stored.address, client_rack=rack)
    tp = kafka.TopicPartition("t", 0)
    assert consumer.offsets_for_times({tp: NOON_MS + 1})[tp].offset == RECORDS
    consumer.close()
    assert untouched(missing)
    stored.put_last(broker_id)
    assert stored.read("nowhere") == stored.expected
    assert not untouched(missing), "without a replica in its rack a reader takes any"


@on_both_stores
def test_readers_without_a_rack_spread_over_the_log_dirs(local):
    for number in range(30):
        local.log.append(local.topic, [Records(0, table(f"{number}"))])
    first = [files[0].broker_id for files in local.replicas()]
    assert len(set(first)) > 1, "names are random; how evenly they spread is for test_replica_selector"
    assert first == [files[0].broker_id for files in local.replicas()], "each segment is read from one place"


@on_both_stores
def test_a_failed_log_dir_is_read_last(local):
    change(local.cluster, t.log_dir.update().where(t.log_dir.c.broker_id == 2).values(online=False))
    gone = local.files(2)
    for file in gone:
        file.damage("missing")
    assert local.read("near") == local.consume("near") == local.expected
    assert untouched(gone), "it was not even opened"
    local.read()
    change(local.cluster, t.log_dir.update().where(t.log_dir.c.broker_id == 2).values(online=True))
    assert local.read("near") == local.expected
    assert not untouched(gone)
    change(local.cluster, t.log_dir.update().where(t.log_dir.c.broker_id == 2).values(online=False))
    for file in local.files(1, 3):
        file.damage("missing")
    assert local.read() == local.expected
    local.assert_whole()


@on_both_stores
def test_replicas_outside_the_isr_are_read_last_and_shorter_ones_never(local):
    local.put_last(1)
    assert {files[2].broker_id for files in local.replicas()} == {1}
    assert {files[0].broker_id for files in local.replicas("near")} == {2}
    change(local.cluster, t.replica.update().where(t.replica.c.broker_id == 1).values(log_end_offset=RECORDS))
    assert [sorted(file.broker_id for file in files) for files in local.replicas()] == [[1, 2, 3], [2, 3], [2, 3]]
    missing = [file for file in local.files(1) if file.name != local.replicas()[0][0].name]
    for file in missing:
        file.damage("missing")
    assert local.read() == local.expected
    assert untouched(missing), "what a replica does not claim to have is not copied by readers"
