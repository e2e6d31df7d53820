"""The URIs of log dirs, and trial files."""

import os
from pathlib import Path

import pytest

from spark_log.cluster.log_dir import LogDir, is_topic_folder, topic_folder
from spark_log.cluster.log_dir_uris import asks_for_region, location_of
from spark_log.errors import StorageUnavailableError


@pytest.mark.parametrize(
    ("uri", "asks"),
    [
        ("s3://bucket/log", True),
        ("s3://key:secret@bucket/log?scheme=https", True),
        ("s3://bucket/log?region=eu-west-1", False),
        ("s3://bucket/log?endpoint_override=127.0.0.1:9000&scheme=http", False),
        ("gs://bucket/log", False),
    ],
)
def test_a_bucket_without_a_region_in_its_uri_is_asked_for_it(uri: str, asks: bool) -> None:
    assert asks_for_region(uri) == asks


def test_a_trial_file_does_not_stay_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    log_dir = LogDir(f"file://{tmp_path}")
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(StorageUnavailableError):
            log_dir.try_writing(10)
    assert list(tmp_path.iterdir()) == []
    log_dir.try_writing(10)
    assert list(tmp_path.iterdir()) == []
    left = tmp_path / ".spark_log_trial-of-a-killed-process"
    left.touch()
    log_dir.try_writing(10)
    assert left.exists(), "another process may be writing it"
    os.utime(left, (0, 0))
    log_dir.try_writing(10)
    assert list(tmp_path.iterdir()) == []


def test_a_log_dir_with_a_beat_of_a_store_only_counts_as_empty(tmp_path: Path) -> None:
    log_dir = LogDir(tmp_path.as_uri())
    for name in ("store-0.beat", ".store-12.beat-0123456789ab.tmp"):
        (tmp_path / name).write_text("7")
    assert log_dir.has_only_tables()
    (tmp_path / "store-0.beat.txt").write_text("a file of another program")
    assert not log_dir.has_only_tables()


def test_folders_of_topics_with_long_names() -> None:
    name, uuid = "x" * 248, "0123abcd" + 24 * "0"
    assert is_topic_folder(topic_folder(name, uuid), name)
    assert is_topic_folder(topic_folder("a-b", uuid), "a-b")
    for other in ("a", "a-b-0123abcd", "a-b-", "b"):
        assert not is_topic_folder(topic_folder("a-b", uuid), other)


def test_names_that_are_not_utf_8_are_listed(tmp_path: Path) -> None:
    log_dir = LogDir(tmp_path.as_uri())
    (tmp_path / "topic" / "folder").mkdir(parents=True)
    (tmp_path / "topic" / "folder" / "file").write_text("four")
    for folder in (tmp_path, tmp_path / "topic" / "folder"):
        Path(os.fsdecode(bytes(folder) + b"/caf\xe9")).write_text("x")
    assert sorted(entry.name for entry in log_dir.entries()) == ["caf\udce9", "topic"]
    assert log_dir.list_files("topic") == {"topic/folder/file": 4, "topic/folder/caf\udce9": 1}
    assert log_dir.markers() == [] and log_dir.marked_stores() == set()
    with pytest.raises(StorageUnavailableError):
        log_dir.sizes(["caf\udce9"])
    log_dir.delete("topic/folder/caf\udce9")
    assert log_dir.names("topic/folder") == ["file"]


@pytest.mark.parametrize(
    ("uri", "location"),
    [
        ("/data/d1", "/data/d1/t/0"),
        ("file:///data/d1", "/data/d1/t/0"),
        ("s3://key:secret@bucket/d1?region=eu-west-1", "s3://bucket/d1/t/0"),
    ],
)
def test_locations_of_files(uri: str, location: str) -> None:
    """Log dirs of earlier releases may have paths instead of URIs."""
    assert location_of(uri, "t/0") == location
