"""Merges segments: one of at most segment.bytes replaces consecutive small segments of a partition, at the same
offsets.

A run of files is merged if, over its inputs,

    2 * max(bytes) <= sum(bytes) <= segment.bytes    and    2 * max(record_count) <= sum(record_count)

So a record's segment at least doubles each time the record is written again: that happens at most log2(n / m) times
while its segment grows from m records to n, whatever the sizes of new segments and the frequency of merging. A run of
equal files is merged completely; in the worst case each of the remaining files is larger than all that follow together.

This holds for GROWTH = 2, which is used on request. In the background the factor is BACKGROUND_GROWTH, which writes a
record a third as often while small files keep coming (replaced files stay on disk for file.delete.delay.ms), and leaves
a few more files. A run that fills half of segment.bytes needs only a factor of 2: it is seldom merged again.
"""

from collections.abc import Collection, Iterator, Sequence
from functools import partial

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.lease import Fence, unfenced
from spark_log.cluster.topics import Topic
from spark_log.log.append.write_ids import Writer
from spark_log.maintenance.rewrite.rewrite_plan import Rewriting, Segment, files_below_tail, may_follow, plan_rewriting
from spark_log.maintenance.rewrite.segment_rewrite import Write, Written, write_and_swap
from spark_log.metadata.sql_columns import SEGMENT
from spark_log.tables.seen_offsets import seen_offsets

GROWTH = 2
BACKGROUND_GROWTH = 8

FILES_MAX = 1_000
"""Maximum number of inputs of one merge, so that its transaction, which appends wait for, takes only milliseconds."""


def runs(
    files: Sequence[Segment], bytes_max: int, seen: Collection[int] = (), growth: int = GROWTH
) -> list[list[Segment]]:
    """Return the runs to merge: disjoint, by offset, each as long as the rule above allows. `files` are by offset.

    Within a run offsets meet, there is one timestamp type, and the span fits into an offset_delta. No run crosses one
    of `seen`, the offsets up to which some Delta table has shown the records: the stream of that table would show some
    records twice or never.
    """
    boundaries = frozenset(seen)
    file_runs: list[list[Segment]] = []
    first = 0
    while first < len(files):
        length = _longest(files, first, bytes_max, boundaries, growth)
        if length:
            file_runs.append(list(files[first : first + length]))
        first += length or 1
    return file_runs


def _longest(files: Sequence[Segment], first: int, bytes_max: int, boundaries: frozenset[int], growth: int) -> int:
    """Return the number of files from `first` on that may be merged, 0 for none."""
    start = last = files[first]
    size, count, largest, most = start.bytes, start.record_count, start.bytes, start.record_count
    longest = 0
    for number, file in enumerate(files[first + 1 : first + FILES_MAX], start=2):
        size += file.bytes
        if size > bytes_max or not may_follow(start, last, file, boundaries):
            break
        count += file.record_count
        largest, most = max(largest, file.bytes), max(most, file.record_count)
        factor = GROWTH if 2 * size >= bytes_max else growth
        if size >= factor * largest and count >= factor * most:
            longest = number
        last = file
    return longest


def merge(
    cluster: Cluster,
    writer: Writer,
    topic: Topic,
    partition: int,
    fence: Fence = unfenced,
    write_file: Write | None = None,
    growth: int = GROWTH,
    bytes_max: int | None = None,
) -> Iterator[tuple[Rewriting, Written]]:
    """Merge the files of the partition where the rule allows it, into files of at most `bytes_max` (by default
    segment.bytes). Yields each merge when its swap is done.

    It ends with the first swap that is refused, because an input or the ISR has changed: the next run sees the new
    state. `write_file` writes the files; without it they are written in this process.
    """
    largest = min(topic.config.segment_bytes, bytes_max or topic.config.segment_bytes)
    while True:
        merge_runs = cluster.store.read(lambda connection: runs_of(connection, topic, partition, growth, largest))
        for run in merge_runs:
            rewriting = cluster.store.read(partial(plan_rewriting, topic=topic, partition=partition, inputs=run))
            if rewriting is None:
                return
            written = write_and_swap(cluster, writer, rewriting, fence, "merge", write_file)
            if written is None:
                return
            yield rewriting, written
        if not merge_runs:
            return


def runs_of(
    connection: sa.Connection, topic: Topic, partition: int, growth: int = GROWTH, bytes_max: int | None = None
) -> list[list[Segment]]:
    """Return the runs of a partition that may be merged (`files_below_tail`)."""
    files = files_below_tail(connection, topic, partition)
    seen = seen_offsets(connection, topic, partition)
    return runs(files, bytes_max or topic.config.segment_bytes, seen, growth)


def partitions_to_merge(
    connection: sa.Connection, topic: Topic, files_min: int = 2, bytes_max: int | None = None
) -> list[int]:
    """Return the partitions with at least `files_min` files that are at most half as large as a file may become."""
    fits = SEGMENT.bytes * 2 <= min(topic.config.segment_bytes, bytes_max or topic.config.segment_bytes)
    query = (
        sa.select(SEGMENT.partition)
        .where(SEGMENT.topic_id == topic.topic_id, ~SEGMENT.inline, fits)
        .group_by(SEGMENT.partition)
        .having(sa.func.count() >= files_min)
        .order_by(SEGMENT.partition)
    )
    return list(connection.execute(query).scalars())
