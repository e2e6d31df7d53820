"""Decides when a batch of a stream begins (minOffsetsPerTrigger), and how much it reads (maxOffsetsPerTrigger,
maxBytesPerTrigger). Apart from bytes, the semantics are those of Spark's KafkaMicroBatchStream, in exact integers.
Pure.
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
    offset, ends at latest. So the caller also passes the starts of new partitions (`data_loss.admission_starts`).
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

    `segments` are the end offsets and bytes of the segments between `start` and `latest`, in order. If they are only
    the first ones, the batch ends with the last of them. A batch reads whole segments, at least one. The share of a
    partition is limit * (bytes of its segments) / total. The unused part of a share, which is smaller than the next
    segment, is the partition's credit: so a partition with a small share waits for some batches, and never for ever
    (deficit round robin). Ends are never above `latest`. A partition without segments ends at its latest offset.
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
    """Whether the next batch waits (minOffsetsPerTrigger): there are fewer than `min_offsets` new records, and the last
    batch began less than `max_trigger_delay_ms` ago.

    `last_trigger_ms` is None before the first batch of a run, which never waits. After False, the caller passes this
    `now_ms` as `last_trigger_ms`. A partition that is not in `start` counts from offset 0.
    """
    if last_trigger_ms is None or now_ms - last_trigger_ms >= max_trigger_delay_ms:
        return False
    return sum(max(0, end - start.get(tp, 0)) for tp, end in latest.items()) < min_offsets
