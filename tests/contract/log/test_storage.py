"""Guarantees of every log dir, a local folder or object storage: files are complete or absent, and never those of
another log dir.
"""

import contextlib
import random
import shutil
from pathlib import Path

import pytest

from spark_log.cluster import log_dir as log_dirs
from spark_log.cluster.cluster import FIRST_BROKER, Cluster
from spark_log.cluster.log_dir import MARKER, LogDir, segment_path
from spark_log.cluster.log_dir_uris import refuse_overlap
from spark_log.errors import (
    CorruptRecordError,
    InvalidConfigurationError,
    LogDirMismatchError,
    StorageUnavailableError,
    UnsafePathError,
)
from spark_log.ids import OffsetRange, TopicPartition
from spark_log.log.append.rules import Appended
from spark_log.log.log import Records
from spark_log.maintenance.client_log import ClientLog
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.tables.publication import delta_tables
from tests.support.disk_faults import mounted, needs_root
from tests.support.records import read_all, table
from tests.support.s3 import give_up_at_once

FILES = {"inline.max.bytes": "0"}
"""Every append is a segment file."""


def big(number, size=5_000):
    return f"{number}-{random.Random(number).randbytes(size // 2).hex()}"


@pytest.fixture(params=["local", "s3"])
def stored(request, tmp_path):
    """A cluster on SQLite with its log dir in a folder, and once in object storage."""
    uri = request.getfixturevalue("s3_uri") if request.param == "s3" else None
    with Cluster.init(str(tmp_path / "cluster"), log_dir=uri) as cluster:
        yield cluster


@pytest.fixture
def local(tmp_path):
    """A cluster on SQLite in an empty folder, and the path of its log dir."""
    with Cluster.init(str(tmp_path / "cluster")) as cluster:
        yield cluster, tmp_path / "cluster" / "broker-1"


def segment_files(folder):
    return sorted(path for path in Path(folder).rglob("*.parquet") if "_segments" in path.parts)


# Both kinds


@pytest.mark.delta
def test_append_seal_read_and_publish(stored):
    import deltalake

    log = ClientLog(stored)
    configs = {"inline.max.bytes": "1000", "delta.max.lag.ms": "-1"}  # no append seals the tail
    topic = create_topic(stored, "t", 2, configs=configs)
    log.append(topic, [Records(0, table("a", "b")), Records(1, table(big(1)))])
    log.append(topic, [Records(0, table(big(2)))])
    expected = [(0, 0, "a"), (0, 1, "b"), (0, 2, big(2)), (1, 0, big(1))]
    assert read_all(log, topic) == expected
    assert log.seal(topic, [0, 1]) == 1
    assert read_all(log, topic) == expected
    log.append(topic, [Records(1, table("tail"))])
    assert read_all(log, topic) == [*expected, (1, 1, "tail")]

    ((log_dir_id, location),) = delta_tables(stored, topic).items()
    options = stored.log_dir(stored.log_dirs()[log_dir_id]).storage_options
    rows = deltalake.DeltaTable(location, storage_options=options).to_pyarrow_table().to_pylist()
    found = sorted((row["partition"], row["base_offset"] + row["offset_delta"], row["value"].decode()) for row in rows)
    assert found == expected
    log.close()


def test_a_file_is_complete_or_absent(stored):
    (info,) = stored.log_dirs().values()
    directory = stored.log_dir(info)
    path = segment_path("t-12345678", 3, "w-0.parquet")
    file = directory.create(path)
    file.write(b"x" * 100_000)
    with pytest.raises(CorruptRecordError, match="missing"):
        directory.open(path)
    file.abort()
    with pytest.raises(CorruptRecordError, match="missing"):
        directory.open(path)
    file = directory.create(path)
    file.write(b"abc")
    file.commit()
    opened = directory.open(path)
    assert (Path(opened).read_bytes() if isinstance(opened, str) else opened.read()) == b"abc"
    directory.delete(path)
    directory.delete(path)
    with pytest.raises(CorruptRecordError, match="missing"):
        directory.open(path)


def test_a_log_dir_that_shows_another_id_is_not_read_or_written(stored):
    (info,) = stored.log_dirs().values()
    directory = LogDir(info.uri)
    marker = directory.read_marker()
    topic = create_topic(stored, "t", configs=FILES)
    log = ClientLog(stored)
    log.append(topic, [Records(0, table("a"))])
    ranges = {TopicPartition("t", 0): OffsetRange(0, 1)}
    directory.write_marker(log_dirs.Marker(marker.cluster_id, marker.broker_id, "another", 0))
    with (
        Cluster.open(str(stored.store.address)) as again,
        pytest.raises(LogDirMismatchError, match=r"another.*swapped"),
    ):
        ClientLog(again).append(topic, [Records(0, table("b"))])
    with pytest.raises(LogDirMismatchError):
        list(log.read(ranges))
    directory.write_marker(marker)
    assert read_all(log, topic) == [(0, 0, "a")]
    log.close()


def test_unavailable_object_storage_is_a_retriable_error(s3_server, tmp_path, monkeypatch):
    give_up_at_once(monkeypatch)
    uri = s3_server.uri("x").replace(s3_server.host.replace(":", "%3A"), "127.0.0.1%3A1")
    with pytest.raises(StorageUnavailableError) as raised:
        Cluster.init(str(tmp_path / "cluster"), log_dir=uri)
    assert "test-secret-key" not in str(raised.value)


# Identity of log dirs


def test_a_log_dir_that_is_empty_or_missing_gets_no_writes(local):
    """Unmounted after the process has checked it: nothing is written in its place, and nothing is acknowledged."""
    cluster, folder = local
    topic = create_topic(cluster, "t", configs=FILES)
    log = ClientLog(cluster)
    log.append(topic, [Records(0, table("a"))])
    away = folder.with_name("away")
    folder.rename(away)
    with pytest.raises(LogDirMismatchError, match="not mounted"):
        log.append(topic, [Records(0, table("b"))])
    with pytest.raises(LogDirMismatchError):
        read_all(log, topic)
    folder.mkdir()
    with pytest.raises(LogDirMismatchError, match="not mounted"):
        log.append(topic, [Records(0, table("b"))])
    with pytest.raises(LogDirMismatchError):
        read_all(log, topic)
    assert list(folder.iterdir()) == []
    folder.rmdir()
    away.rename(folder)
    assert log.append(topic, [Records(0, table("c"))]) == [Appended(1, 2)]
    assert read_all(log, topic) == [(0, 0, "a"), (0, 1, "c")]
    log.close()


@needs_root
def test_an_empty_mount_over_the_log_dir_gets_no_writes(local):
    """A real mount covers the log dir, as root."""
    cluster, folder = local
    topic = create_topic(cluster, "t", configs=FILES)
    log = ClientLog(cluster)
    log.append(topic, [Records(0, table("a"))])
    with mounted(folder, "1m"), pytest.raises(LogDirMismatchError, match="not mounted"):
        log.append(topic, [Records(0, table("b"))])
    assert log.append(topic, [Records(0, table("c"))]) == [Appended(1, 2)]
    log.close()


def test_log_dirs_do_not_overlap(local, tmp_path):
    cluster, folder = local
    (tmp_path / "link").symlink_to(folder)
    (tmp_path / "way").symlink_to(tmp_path)
    bad = {
        "the same": folder,
        "the same as a URI": folder.as_uri(),
        "the same through a link": tmp_path / "link",
        "the same through the parent": folder / ".." / "broker-1",
        "the same through a linked parent": tmp_path / "way" / "cluster" / "broker-1",
        "inside": folder / "inner",
        "around": tmp_path / "cluster",
        "further around": tmp_path,
    }
    before = sorted(tmp_path.rglob("*"))
    for case, location in bad.items():
        with pytest.raises((InvalidConfigurationError, LogDirMismatchError)) as raised:
            cluster.add_log_dir(FIRST_BROKER, str(location))
        assert str(folder) in str(raised.value) or "not empty" in str(raised.value), case
    assert sorted(tmp_path.rglob("*")) == before
    assert len(cluster.log_dirs()) == 1
    cluster.add_log_dir(FIRST_BROKER, str(tmp_path / "cluster" / "broker-10"))
    assert len(cluster.log_dirs()) == 2, "a common beginning of the names is no overlap"
    with pytest.raises((InvalidConfigurationError, LogDirMismatchError)):
        Cluster.init(str(tmp_path / "other"), log_dir=str(folder))


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        ("s3://bucket/a", "s3://bucket/a/", True),
        ("s3://bucket/a", "s3://key:secret@bucket/a?region=x", True),
        ("s3://bucket/a", "s3://bucket/a/b", True),
        ("s3://bucket", "s3://bucket/a", True),
        ("s3://bucket/a", "s3://bucket/ab", False),
        ("s3://bucket/a", "s3://other/a", False),
        ("s3://bucket/a", "gs://bucket/a", False),
        ("s3://b/a?endpoint_override=one:9000", "s3://b/a?endpoint_override=two:9000", False),
        ("s3://b/a?endpoint_override=one:9000", "s3://k:s@b/a?scheme=http&endpoint_override=one:9000", True),
    ],
)
def test_buckets_overlap(one, other, overlap):
    for mine, theirs in ((one, other), (other, one)):
        with pytest.raises(InvalidConfigurationError) if overlap else contextlib.nullcontext() as raised:
            refuse_overlap(mine, [theirs])
        assert not overlap or "secret" not in str(raised.value)


@pytest.mark.parametrize("location", ["", " ", "nosuch://x/y", "file.txt"])
def test_a_location_that_is_no_folder_is_refused_as_a_log_dir(location, tmp_path):
    (tmp_path / "file.txt").write_text("x")
    place = str(tmp_path / location) if location == "file.txt" else location
    with pytest.raises((InvalidConfigurationError, StorageUnavailableError), match="log dir"):
        Cluster.init(str(tmp_path / "cluster"), log_dir=place)


@pytest.mark.delta
@pytest.mark.parametrize("name", ["with space", "pünktchen", "a#b?c", "plus+&"])
def test_folders_with_odd_names(name, tmp_path):
    import deltalake

    with Cluster.init(str(tmp_path / name)) as cluster:
        topic = create_topic(cluster, "t", configs=FILES)
        log = ClientLog(cluster)
        log.append(topic, [Records(0, table("a"))])
        assert read_all(log, topic) == [(0, 0, "a")]
        (location,) = delta_tables(cluster, topic).values()
        assert deltalake.DeltaTable(location).to_pyarrow_table().column("value").to_pylist() == [b"a"]
        log.close()
    (tmp_path / name).rename(tmp_path / "moved")
    with Cluster.open(str(tmp_path / "moved")) as cluster:
        log = ClientLog(cluster)
        assert log.append(log.find_topic("t"), [Records(0, table("b"))]) == [Appended(1, 2)]
        assert read_all(log, log.find_topic("t")) == [(0, 0, "a"), (0, 1, "b")]
        log.close()


@pytest.mark.delta
def test_a_folder_that_deltalake_cannot_name_is_refused(tmp_path):
    with pytest.raises(InvalidConfigurationError, match="%"):
        Cluster.init(str(tmp_path / "per%20cent"))
    with Cluster.init(str(tmp_path / "per%20cent"), log_dir=str(tmp_path / "per cent")) as cluster:
        with pytest.raises(InvalidConfigurationError, match="%"):
            cluster.add_log_dir(FIRST_BROKER, str(tmp_path / "5%"))
        log = ClientLog(cluster)
        log.append(create_topic(cluster, "t"), [Records(0, table("a"))])
        assert read_all(log, log.find_topic("t")) == [(0, 0, "a")]


# Paths


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "a/../b", "", ".", "a\0b"])
def test_paths_that_leave_the_log_dir_are_refused(local, path):
    cluster, _ = local
    (info,) = cluster.log_dirs().values()
    directory = cluster.log_dir(info)
    for use in (directory.create, directory.open, directory.delete, directory.make_folder, directory.sync):
        with pytest.raises(UnsafePathError, match="path"):
            use(path)


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("..", "w-0.parquet"),
        (".", "w-0.parquet"),
        ("t", "../w-0.parquet"),
        ("t", "/w-0.parquet"),
        ("t/u", "w-0.parquet"),
        ("t", "w-0.parquet\n"),
        ("t", ".w-0.parquet"),
        ("t", "w-0.txt"),
        ("", "w-0.parquet"),
    ],
)
def test_invalid_segment_names_in_the_metadata_are_refused(folder, name):
    with pytest.raises(UnsafePathError, match="segment path"):
        segment_path(folder, 0, name)


def test_a_symbolic_link_in_a_log_dir_is_not_followed(local, tmp_path):
    cluster, folder = local
    topic = create_topic(cluster, "t", configs=FILES)
    log = ClientLog(cluster)
    log.append(topic, [Records(0, table("a"))])
    (segment,) = segment_files(folder)
    shutil.move(segment, tmp_path / "elsewhere.parquet")
    segment.symlink_to(tmp_path / "elsewhere.parquet")
    with pytest.raises(UnsafePathError, match="symbolic link"):
        read_all(log, topic)
    segment.unlink()
    segment.parent.rmdir()
    (tmp_path / "outside").mkdir()
    segment.parent.symlink_to(tmp_path / "outside")
    with pytest.raises(UnsafePathError, match="symbolic link"):
        log.append(topic, [Records(0, table("b"))])
    assert list((tmp_path / "outside").iterdir()) == []
    log.close()


# Damage


def test_a_damaged_segment_is_never_read_as_other_data(local):
    """Truncated, zeroed, missing, one bit flipped: a read returns the written records or CorruptRecordError."""
    cluster, folder = local
    topic = create_topic(cluster, "t", configs=FILES)
    log = ClientLog(cluster)
    log.append(topic, [Records(0, table(*(big(number, 300) for number in range(50)), headers=[("h", b"v")]))])
    whole = read_all(log, topic)
    (segment,) = segment_files(folder)
    content, random_ = segment.read_bytes(), random.Random(7)

    def read_after(damaged):
        segment.write_bytes(damaged)
        try:
            return [
                row for batch in log.read({TopicPartition("t", 0): OffsetRange(0, 50)}) for row in batch.to_pylist()
            ]
        except CorruptRecordError:
            return None

    good = read_after(content)
    assert len(good) == len(whole) == 50
    for length in (0, 1, 8, 100, len(content) // 2, len(content) - 1):
        assert read_after(content[:length]) is None
    assert read_after(content + b"x") is None
    assert read_after(bytes(len(content))) is None
    zeroed = bytearray(content)
    zeroed[200:4296] = bytes(4096)
    assert read_after(bytes(zeroed)) is None
    noticed = 0
    for _ in range(150):
        damaged = bytearray(content)
        damaged[random_.randrange(len(content))] ^= 1 << random_.randrange(8)
        found = read_after(bytes(damaged))
        assert found in (None, good)
        noticed += found is None
    assert noticed > 100
    segment.unlink()
    with pytest.raises(CorruptRecordError, match="missing"):
        read_all(log, topic)
    segment.write_bytes(content)
    assert read_all(log, topic) == whole
    log.close()


def test_a_file_with_the_content_of_another_segment_is_refused(local):
    cluster, folder = local
    topic = create_topic(cluster, "t", configs=FILES)
    log = ClientLog(cluster)
    log.append(topic, [Records(0, table("a", "b"))])
    log.append(topic, [Records(0, table("c"))])
    one, other = segment_files(folder)
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)
    with pytest.raises(CorruptRecordError):
        read_all(log, topic)
    log.close()


def test_an_invalid_marker_is_an_error(local):
    cluster, folder = local
    for content in (b"", b"{", b"[]", b'{"uuid": "x"}', b"\xff"):
        (folder / MARKER).write_bytes(content)
        with Cluster.open(str(cluster.store.address)) as again, pytest.raises(LogDirMismatchError, match=MARKER):
            again.log_dir(next(iter(again.log_dirs().values())))
