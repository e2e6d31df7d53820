"""Calls into a disk that hang or fail: when they are left, how they are counted, and that their files get no name."""

import os
import threading

import pytest

from spark_log import clock
from spark_log.cluster.files import disk_calls, new_file
from spark_log.cluster.files.disk_calls import DiskCalls, Use
from spark_log.cluster.files.new_file import LocalFile
from spark_log.errors import StorageUnavailableError
from tests.support.waiting import LIMIT_S, wait_until

ANSWER_S = 0.3


def no_calls():
    """Whether no thread is in a call, or waits for one."""
    names = ("spark-log-disk", "spark-log-trial", "spark-log-inspection")
    return not any(thread.name.startswith(names) for thread in threading.enumerate())


def test_a_file_that_was_left_does_not_get_its_name(tmp_path, monkeypatch):
    thawed, fsync = threading.Event(), os.fsync
    monkeypatch.setattr(disk_calls, "CALL_S_MAX", ANSWER_S)
    monkeypatch.setattr(os, "fsync", lambda descriptor: thawed.wait(LIMIT_S) and fsync(descriptor))
    file = LocalFile(tmp_path / "a", tmp_path)
    file.write(b"a")
    with pytest.raises(StorageUnavailableError, match="no answer in"):
        file.commit()
    assert [path.name for path in tmp_path.iterdir()] == [".a.tmp"]
    another = LocalFile(tmp_path / "b", tmp_path)
    with pytest.raises(StorageUnavailableError, match="an earlier call has not returned"):
        another.commit()
    now_s = clock.monotonic_s()
    with (
        monkeypatch.context() as later
    ):  # the mount may have been replaced: one call is tried, then after twice the time
        for seconds, answer in ((61, "no answer in"), (180, "an earlier call"), (182, "no answer in")):
            later.setattr(clock, "monotonic_s", lambda seconds=seconds: now_s + seconds)
            with pytest.raises(StorageUnavailableError, match=answer):
                LocalFile(tmp_path / f"b-{seconds}", tmp_path).commit()
    thawed.set()
    wait_until(lambda: not list(tmp_path.iterdir()))
    wait_until(no_calls)
    monkeypatch.undo()
    another = LocalFile(tmp_path / "b", tmp_path)
    another.commit()
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_calls_that_hang_at_the_same_time_count_once_and_one_is_tried_later(monkeypatch):
    answers, tried = threading.Event(), threading.Event()

    def begin(event):
        return DiskCalls("/mnt/replaced", Use.WRITES).begin(lambda: event.wait(LIMIT_S))

    with monkeypatch.context() as short:
        short.setattr(disk_calls, "CALL_S_MAX", 0.05)
        for end in [begin(answers) for _ in range(4)]:
            with pytest.raises(StorageUnavailableError, match="no answer in"):
                end()
    now_s = clock.monotonic_s()
    monkeypatch.setattr(clock, "monotonic_s", lambda: now_s + 61)
    trial = begin(tried)
    with pytest.raises(StorageUnavailableError, match="an earlier call"):
        begin(tried)
    tried.set()
    assert trial() and begin(tried)(), "the threads that wait for the old mount do not count any more"
    assert disk_calls.hangs("/mnt/replaced") and not disk_calls.refuses("/mnt/replaced")
    with monkeypatch.context() as short:
        short.setattr(disk_calls, "CALL_S_MAX", 0.05)
        with pytest.raises(StorageUnavailableError, match="no answer in"):
            begin(answers)()
    monkeypatch.setattr(clock, "monotonic_s", lambda: now_s + 61 + 239)
    assert disk_calls.refuses("/mnt/replaced"), "some kinds of calls answer: the next pause is longer all the same"
    answers.set()
    wait_until(no_calls)
    assert not disk_calls.hangs("/mnt/replaced") and not disk_calls.refuses("/mnt/replaced")


def test_a_call_that_is_left_before_its_limit_refuses_no_other(monkeypatch):
    """As of a file in a healthy log dir whose batch fails in another one."""
    answers, done = threading.Event(), threading.Event()
    calls = DiskCalls("/mnt/slow", Use.WRITES, undo=done.set)
    calls.begin(lambda: answers.wait(LIMIT_S))
    assert calls.leave()
    assert not disk_calls.refuses("/mnt/slow") and not disk_calls.hangs("/mnt/slow")
    assert DiskCalls("/mnt/slow", Use.WRITES).run(lambda: True)
    answers.set()
    assert done.wait(LIMIT_S)
    wait_until(no_calls)


def test_a_file_of_which_a_block_could_not_be_written_gets_no_name(tmp_path, monkeypatch):
    monkeypatch.setattr(new_file, "_WRITE_BYTES", 1)
    file = LocalFile(tmp_path / "a", tmp_path)
    file.write(b"a")
    with monkeypatch.context() as full:
        full.setattr(new_file, "memoryview", lambda _: (_ for _ in ()).throw(OSError("disk error")), raising=False)
        with pytest.raises(StorageUnavailableError, match="disk error"):
            file.write(b"b")
    with pytest.raises(StorageUnavailableError, match="disk error"):
        file.commit()
    assert not list(tmp_path.iterdir())
