"""Copies of segment files from sources of which one hangs."""

import threading
from collections.abc import Generator
from pathlib import Path

import pytest
import xxhash

from spark_log.cluster.files import disk_calls
from spark_log.cluster.log_dir import LogDir
from spark_log.errors import CorruptRecordError
from spark_log.log.segments.segment_copy import SegmentFile, copy_segment
from tests.support.waiting import wait_until

CONTENT = b"content"


def log_dir(folder: Path) -> LogDir:
    folder.mkdir()
    (folder / "file").write_bytes(CONTENT)
    return LogDir(folder.as_uri())


def test_a_source_that_hangs_is_left_and_not_asked_again_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hanging, whole = log_dir(tmp_path / "hanging"), log_dir(tmp_path / "whole")
    answers, asked = threading.Event(), []

    def read_blocks(_path: str) -> Generator[memoryview, None, None]:
        asked.append(1)
        answers.wait()
        yield memoryview(CONTENT)

    monkeypatch.setattr(hanging, "read_blocks", read_blocks)
    monkeypatch.setattr(disk_calls, "CALL_S_MAX", 0.1)
    file = SegmentFile("file", len(CONTENT), xxhash.xxh3_128(CONTENT).hexdigest())
    try:
        for name in ("first", "second"):
            (tmp_path / name).mkdir()
            copy_segment([hanging, whole], LogDir((tmp_path / name).as_uri()), file, lambda _: None)
            assert (tmp_path / name / "file").read_bytes() == CONTENT
        with pytest.raises(CorruptRecordError, match="has not returned"):
            copy_segment([hanging], LogDir((tmp_path / "first").as_uri()), file, lambda _: None)
        assert len(asked) == 1
    finally:
        answers.set()
    wait_until(lambda: not any("spark-log-disk-reads" in thread.name for thread in threading.enumerate()))
