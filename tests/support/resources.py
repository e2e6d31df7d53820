"""The resource oracle: a cluster has on disk and in memory only what its metadata names, and little more."""

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.each_store import in_each_store
from spark_log.cluster.topics import find_topics
from spark_log.maintenance.removal.cleanable_log_dirs import CleanableLogDirs
from spark_log.metadata import tables as t
from tests.support.waiting import LIMIT_S

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
    deadline_s = time.monotonic() + LIMIT_S
    while min(after := _arrow_bytes(bytes_max), after - before) > bytes_max:
        assert time.monotonic() < deadline_s, f"{after - before:,} bytes of Arrow are held, {bytes_max:,} are allowed"
        time.sleep(0.01)


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
