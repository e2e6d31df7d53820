"""The questions that inspections ask log dirs."""

import threading
from dataclasses import replace

import pytest

from spark_log.ids import HOME, BrokerId, LogDirId
from spark_log.replication.controller import log_dir_inspection
from spark_log.replication.controller.log_dir_inspection import LogDirAnswer, RegisteredLogDir
from tests.support.waiting import LIMIT_S, wait_until


def test_an_offline_log_dir_does_not_get_the_answer_of_when_it_was_online(monkeypatch: pytest.MonkeyPatch) -> None:
    """An offline log dir needs a successful trial write, for which an online one does not wait."""
    asked, may_answer = [], threading.Event()

    def ask(log_dir: RegisteredLogDir, *_: object) -> LogDirAnswer:
        asked.append(log_dir.online)
        assert may_answer.wait(LIMIT_S)
        return LogDirAnswer(None)

    monkeypatch.setattr(log_dir_inspection, "_ask", ask)
    monkeypatch.setattr(log_dir_inspection, "ANSWER_S_MAX", 0.0)
    online = RegisteredLogDir(LogDirId(1), BrokerId(1), "file:///d", "u", HOME, 0, True, None)
    for log_dir in (online, replace(online, counter=1), replace(online, online=False)):
        log_dir_inspection._ask_all([log_dir], "c")
    may_answer.set()
    wait_until(lambda: not any(each.name.startswith("spark-log-inspection") for each in threading.enumerate()))
    assert sorted(asked) == [False, True]
