"""The inspection of log dirs of which some hang."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor

from spark_log import clock, process
from spark_log.cluster.lease import unfenced
from spark_log.replication.controller import log_dir_inspection
from spark_log.replication.controller.log_dir_inspection import inspect_log_dirs


def test_log_dirs_that_hang_are_asked_once_and_waited_for_together(three_brokers, monkeypatch):
    release, asked, waits = threading.Event(), [], []
    ask, wait = log_dir_inspection._ask, log_dir_inspection.wait

    def hanging(known, *others):
        asked.append(known.broker_id)
        if known.broker_id != 1:
            release.wait()
        return ask(known, *others)

    def short(answers: list[Future], timeout_s):
        waits.append(timeout_s)
        return wait(answers, 0.2)

    monkeypatch.setattr(log_dir_inspection, "_ask", hanging)
    monkeypatch.setattr(log_dir_inspection, "wait", short)
    for _ in range(3):
        assert len(inspect_log_dirs(three_brokers, unfenced).out) <= 2
    assert sorted(asked) == [1, 1, 1, 2, 3] and len(waits) == 3
    now_s = clock.monotonic_s()
    with monkeypatch.context() as later:
        for seconds, count in ((61, 2), (121, 2), (182, 3)):  # a mount that was replaced answers
            later.setattr(clock, "monotonic_s", lambda seconds=seconds: now_s + seconds)
            inspect_log_dirs(three_brokers, unfenced)
            assert asked.count(2) == asked.count(3) == count
    release.set()
    while process._asking:
        threading.Event().wait(0.01)
    inspect_log_dirs(three_brokers, unfenced)
    assert asked.count(2) == asked.count(3) == 4


def test_without_a_thread_the_caller_inspects(three_brokers, monkeypatch, tmp_path):
    """At the exit of the program, and at the limit of threads."""
    monkeypatch.setattr(process, "start_thread", lambda *_: None)
    assert inspect_log_dirs(three_brokers, unfenced).out == {}
    (tmp_path / "d2").rename(tmp_path / "away")
    assert len(inspect_log_dirs(three_brokers, unfenced).out) == 1


def test_inspections_at_the_same_time_share_the_answers(three_brokers, monkeypatch):
    both, asked, ask = threading.Barrier(2, timeout=30), [], log_dir_inspection._ask
    release = threading.Event()

    def slow(known, *others):
        asked.append(known.broker_id)
        assert release.wait(30)
        return ask(known, *others)

    def inspect():
        both.wait()
        return inspect_log_dirs(three_brokers, unfenced)

    def waits(answers, timeout_s):
        waiting.append(len(answers))
        if len(waiting) == 2:
            release.set()
        return wait(answers, timeout_s)

    waiting, wait = [], log_dir_inspection.wait
    monkeypatch.setattr(log_dir_inspection, "_ask", slow)
    monkeypatch.setattr(log_dir_inspection, "wait", waits)
    with ThreadPoolExecutor(2) as threads:
        found = [each.result(60) for each in [threads.submit(inspect) for _ in range(2)]]
    assert [each.out for each in found] == [{}, {}]
    assert sorted(asked) == [1, 2, 3] and waiting == [3, 3]
