"""The resource oracle, and searches for erased records.

The oracle checks that a cluster has on disk and in memory only what its metadata names, and little more. A canary is a
text in records that were erased; it is searched for in every file that a cluster has written.
"""

import gc
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from spark_log import clock
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.each_store import in_each_store
from spark_log.cluster.topics import Topic, find_topics
from spark_log.maintenance import run_tasks
from spark_log.maintenance.removal.cleanable_log_dirs import CleanableLogDirs
from spark_log.maintenance.report import Report
from spark_log.metadata import tables as t
from tests.support.replicas import folder_of
from tests.support.waiting import wait_until

_ARROW_BYTES_MAX = 2_000_000
"""Allowance for Arrow's own memory, in bytes."""


def unnamed_files(cluster: Cluster) -> list[str]:
    """Files in the topics' segment folders of the log dirs that answer, whole or unfinished, that no segment, pending
    batch or retired file names.
    """
    log_dirs = CleanableLogDirs.of(cluster)
    found: list[str] = []
    for log_dir_id in log_dirs.infos:
        log_dir = log_dirs.open(log_dir_id)
        folders = [] if log_dir is None else [entry.name for entry in log_dir.entries() if entry.folder]
        for folder in folders:
            assert log_dir is not None
            found += log_dir.list_files(f"{folder}/_segments")
    named = set().union(*in_each_store(cluster, lambda view: view.store.read(_named)).values())
    return sorted(path for path in found if path not in named)


def assert_only_named_files(cluster: Cluster, *, in_flight: int = 0) -> None:
    """At most `in_flight` files on disk that the metadata does not name."""
    unnamed = unnamed_files(cluster)
    assert len(unnamed) <= in_flight, unnamed


def _named(connection: sa.Connection) -> set[str]:
    folders = {topic.topic_id: topic.folder for topic in find_topics(connection).values()}
    named: set[str] = set()
    for table in (t.segment, t.transaction_segment):
        query = sa.select(table.c.topic_id, table.c.partition, table.c.name).where(~table.c.inline)
        named |= {f"{folders.get(topic_id)}/_segments/{n}/{name}" for topic_id, n, name in connection.execute(query)}
    named |= set(connection.execute(sa.select(t.retired_file.c.path)).scalars())
    return named | set(connection.execute(sa.select(t.retired_copy.c.path)).scalars())


@contextmanager
def arrow_memory(bytes_max: int) -> Iterator[None]:
    """Checks that Arrow soon holds at most `bytes_max` bytes more at the end than at the beginning.

    A producer's thread may still use a batch for a moment when the outcome of its records is known.
    """
    before = _arrow_bytes(bytes_max // 10)
    yield
    allowed = before + bytes_max
    wait_until(lambda: _arrow_bytes(bytes_max) <= allowed, f"Arrow holds at most {allowed:,} bytes, {before:,} before")


def _arrow_bytes(negligible: int) -> int:
    """The bytes that Arrow has allocated. Garbage, whose collection takes 0.1 s, may be among a negligible number."""
    if pa.total_allocated_bytes() > negligible:
        gc.collect()
    return int(pa.total_allocated_bytes())


@contextmanager
def bounded_resources(cluster: Cluster) -> Iterator[None]:
    """Checks at the end that no file is left that the metadata does not name, and no memory, also after failures.

    The block must close its producers and logs, and kill none.
    """
    with arrow_memory(_ARROW_BYTES_MAX):
        yield
    assert_only_named_files(cluster)


def places_with(cluster: Cluster, root: Path, *texts: bytes, away: Iterable[int] = ()) -> dict[str, str]:
    """Every file below `root` that contains one of `texts`, and the text that a report naming its place must contain.

    `root` has the folders of all log dirs and of the metadata store. `away`: brokers whose log dir was moved aside to
    `<log dir>-away`, as `replicas.take_away` does.
    """
    folders = {folder_of(cluster, info.broker_id): info.broker_id for info in cluster.log_dirs().values()}
    aside = {Path(f"{folder}-away"): folder for folder, broker_id in folders.items() if broker_id in set(away)}
    found: dict[str, str] = {}
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        if any(text in path.read_bytes() for text in texts):
            found[str(path)] = _place(path, set(folders), aside)
    return found


def _place(path: Path, log_dirs: Iterable[Path], aside: dict[Path, Path]) -> str:
    """The log dir of an unavailable file, the path of any other file in its log dir, or the store's folder."""
    for folder, log_dir in aside.items():
        if path.is_relative_to(folder):
            return str(log_dir)
    for log_dir in log_dirs:
        if path.is_relative_to(log_dir):
            return str(path.relative_to(log_dir))
    return str(path.parent)


def unnamed_places(notes: Iterable[str], places: dict[str, str]) -> list[str]:
    """The files whose place is not in any note."""
    text = "\n".join(notes)
    return [path for path, place in places.items() if place not in text]


def files_with(folder: Path, *texts: bytes) -> list[str]:
    """Names of the files below `folder` whose bytes contain one of `texts`."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return sorted(path.name for path in files if any(text in path.read_bytes() for text in texts))


def clean(cluster: Cluster, **filters: Any) -> dict[str | None, Report]:
    """The reports by topic. Those of all stores about no topic are one."""
    found: dict[str | None, Report] = {}
    for report in run_tasks(cluster, ["files"], **filters):
        before = found.get(report.topic)
        if before is not None:
            report = replace(report, before=before.before + report.before, notes=before.notes + report.notes)
        found[report.topic] = report
    return found


def folders_of(root: Path) -> list[str]:
    """Names of the entries of a log dir, without its marker files, of which there is at least one."""
    assert list(root.glob("spark_log_dir*.json"))
    return sorted(path.name for path in root.iterdir() if not path.match("spark_log_dir*.json"))


def retired(cluster: Cluster) -> list[str]:
    """Paths of the retired files."""
    query = sa.select(t.retired_file.c.path)
    return _values_in_all_stores(cluster, query)


def named(cluster: Cluster) -> list[str]:
    """Names of the files that the metadata name."""
    query = sa.select(t.segment.c.name).where(~t.segment.c.inline)
    return _values_in_all_stores(cluster, query)


def _values_in_all_stores(cluster: Cluster, query: sa.Select[Any]) -> list[str]:
    found = in_each_store(cluster, lambda view: view.store.read(lambda c: c.execute(query).scalars().all()))
    return sorted(value for values in found.values() for value in values)


def files(folder: Path, topic: Topic) -> list[str]:
    """Names of all files in the segment folders of the topic."""
    return sorted(path.name for path in Path(folder, topic.folder, "_segments").rglob("*") if path.is_file())


def plant(cluster: Cluster, path: str, content: bytes = b"x", broker_id: int = 1, age_ms: int = 0) -> Path:
    """A file in a log dir, by its path there."""
    place = folder_of(cluster, broker_id) / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content)
    when_s = (clock.wall_ms() - age_ms) / 1000
    os.utime(place, (when_s, when_s))
    return place
