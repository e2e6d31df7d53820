"""With any damage in two of three replicas, every record is read once and in order, and the files are repaired."""

import logging
import os
import resource
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import kafka
import pytest

from spark_log import Consumer
from spark_log.errors import CorruptRecordError
from spark_log.ids import OffsetRange, TopicPartition
from spark_log.log.log import Records
from spark_log.log.records.schema import read_schema
from spark_log.log.segments import fetcher as fetcher_module
from spark_log.log.segments.fetcher import Fetcher
from tests.support.disk_faults import DAMAGES
from tests.support.python_process import killed_at
from tests.support.records import NOON_MS, ranges_of, table
from tests.support.replicas import RECORDS, ROWS, SEGMENTS, ThreeReplicas

KINDS_BY_STORAGE = [
    *(("local", kind) for kind in DAMAGES),
    *(("s3", kind) for kind in ("missing", "truncated", "zeroed")),
]
"""In object storage: no object, a short one, and wrong bytes, which are checked alike wherever they are from."""


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
    stored = ThreeReplicas(cluster_address, {number: str(folder) for number, folder in folders.items()})
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


def test_reads_succeed_without_room_for_a_repair(cluster_address, folders, caplog):
    """The kernel refuses writes, as a full disk does: reading continues, and no partial file stays."""
    local = ThreeReplicas(cluster_address, {number: str(folder) for number, folder in folders.items()})
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
