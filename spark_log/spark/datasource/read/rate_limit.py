"""Admission control of a stream: when a batch begins (minOffsetsPerTrigger), and how much it reads
(maxOffsetsPerTrigger). It has the semantics of Spark's KafkaMicroBatchStream, in exact integers. Pure.
"""

from collections.abc import Mapping

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
