"""Admission control of a stream: when a batch begins (minOffsetsPerTrigger), and how much it reads
(maxOffsetsPerTrigger, maxBytesPerTrigger). Apart from bytes, it has the semantics of Spark's KafkaMicroBatchStream, in
exact integers. Pure.
"""

from collections.abc import Mapping, Sequence

from spark_log.ids import TopicPartition


def rate_limit(
    limit: int, start: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Return the ends of a batch of about `limit` records (maxOffsetsPerTrigger), shared in proportion to new records.

    The share of a partition is limit * size / total, rounded down, but at least 1 if it has a new record, so that a
    small partition never starves: a batch holds at most limit + (number of partitions) records. Ends are never above
    `latest`. The keys are those of `latest`; a partition that is not in `start`, or whose start is not below its latest
    offset, ends at latest. So pass the starts of new partitions too (`data_loss.admission_starts`).
    """
    sizes = {tp: end - start[tp] for tp, end in latest.items() if tp in start and end > start[tp]}
    total = sum(sizes.values())
    if total == 0 or limit >= total:
        return dict(latest)
    ends = dict(latest)
    for tp, size in sizes.items():
        ends[tp] = start[tp] + min(size, max(limit * size // total, min(limit, 1)))
    return ends


def byte_limit(
    limit: int,
    start: Mapping[TopicPartition, int],
    latest: Mapping[TopicPartition, int],
    segments: Mapping[TopicPartition, Sequence[tuple[int, int]]],
    credit: Mapping[TopicPartition, int],
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Return the ends of a batch of about `limit` stored bytes (maxBytesPerTrigger), and the credit for the next one.

    `segments` are the end offsets and bytes of the segments between `start` and `latest`, in order, or only the first
    ones: then the batch ends with the last of them. A batch reads whole segments, at least one. The share of a
    partition is limit * (bytes of its segments) / total. What it does not use, because its next segment is larger, is
    its credit: so a partition with a small share waits for some batches, and never for ever (deficit round robin). Ends
    are never above `latest`. A partition without segments ends at latest.
    """
    sizes = {tp: sum(size for _, size in found) for tp, found in segments.items() if found and tp in latest}
    total = sum(sizes.values())
    latest = {tp: min(end, segments[tp][-1][0]) if tp in sizes else end for tp, end in latest.items()}
    if total <= limit:
        return dict(latest), {}
    ends, left = {**latest, **{tp: start[tp] for tp in sizes}}, {}
    for tp, size in sizes.items():
        left[tp] = credit.get(tp, 0) + limit * size // total
        for end, bytes_ in segments[tp]:
            if bytes_ > left[tp]:
                break
            ends[tp], left[tp] = min(end, latest[tp]), left[tp] - bytes_
    if all(ends[tp] == start[tp] for tp in sizes):
        tp = min(sizes, key=lambda tp: segments[tp][0][1] - left[tp])
        end, bytes_ = segments[tp][0]
        ends[tp], left[tp] = min(end, latest[tp]), left[tp] - bytes_
    return ends, {tp: bytes_ for tp, bytes_ in left.items() if ends[tp] < latest[tp]}


def should_delay(
    start: Mapping[TopicPartition, int],
    latest: Mapping[TopicPartition, int],
    *,
    min_offsets: int,
    max_trigger_delay_ms: int,
    now_ms: int,
    last_trigger_ms: int | None,
) -> bool:
    """Whether a batch waits (minOffsetsPerTrigger): there are too few new records and the last batch is recent enough.

    `last_trigger_ms` is None before the first batch of a query's run, which never waits. A caller that gets False uses
    `now_ms` as its new `last_trigger_ms`. A partition that is not in `start` counts from offset 0.
    """
    if last_trigger_ms is None or now_ms - last_trigger_ms >= max_trigger_delay_ms:
        return False
    return sum(max(0, end - start.get(tp, 0)) for tp, end in latest.items()) < min_offsets
