"""Counts what this process does for the tables of topics, for its metrics: publications, the time that they take, and
the files of the logs that it maintains.
"""

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from spark_log.cluster.topics import Topic
from spark_log.ids import LogDirId

_TABLES_MAX = 10_000
"""The number of tables above which all counts begin again, because of deleted topics."""


class Tables(NamedTuple):
    """The tables of a topic in one format. Uuids of topics are unique in all clusters."""

    topic_uuid: str
    target: str


@dataclass(frozen=True)
class TableWork:
    """The number of commits of this process, the seconds from the beginning of each until it was recorded, and the
    number of files of the tables' logs by log dir, when they were last maintained here.
    """

    publications: int = 0
    seconds: float = 0.0
    log_files: Mapping[LogDirId, int] = field(default_factory=dict)


_lock = threading.Lock()
_work: dict[Tables, TableWork] = {}


def published(topic: Topic, target: str, seconds: float) -> None:
    """Count a commit."""
    with _lock:
        tables, before = _before(topic, target)
        _work[tables] = replace(before, publications=before.publications + 1, seconds=before.seconds + seconds)


def maintained(topic: Topic, target: str, log_dir_id: LogDirId, files: int) -> None:
    """Note the number of files of a table's log."""
    with _lock:
        tables, before = _before(topic, target)
        _work[tables] = replace(before, log_files={**before.log_files, log_dir_id: files})


def of_this_process() -> Mapping[Tables, TableWork]:
    with _lock:
        return dict(_work)


def _forget_parent() -> None:
    """Reset the counts in a forked child, and the lock, which a thread of the parent may have held."""
    global _lock
    _lock = threading.Lock()
    _work.clear()


os.register_at_fork(after_in_child=_forget_parent)


def _before(topic: Topic, target: str) -> tuple[Tables, TableWork]:
    tables = Tables(topic.uuid, target)
    if tables not in _work and len(_work) >= _TABLES_MAX:
        _work.clear()
    return tables, _work.get(tables, TableWork())
