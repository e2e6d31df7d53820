"""Decides which offsets of [start, end) a batch can still read, and which are lost (option failOnDataLoss).

The rules are those of Spark's connector (KafkaOffsetReaderAdmin, kafka-error-conditions.json). Two more checks, by
topic ids and leader epochs, detect topics that were deleted and created again, and logs that an unclean election has
truncated, even if they have grown past the old offset. In these cases Spark would silently continue in the middle of
another log.

The last column is for failOnDataLoss=false:

    loss                                                 continues at
    start below the log start offset (aged out)          the earliest available offset
    end above the high watermark (lost by an election)   the high watermark, for this batch
    end below start in the same topic                    end
    log truncated below start since start was decided    the offset where it was truncated
    log truncated below end since end was decided        the offset where it was truncated, for this batch
    topic recreated (its id differs from start's)        the log start offset of the new one
    topic recreated after the end was decided            nothing of it is read; the next batch reads the new one
    checkpoint of another cluster                        as if all topics had been recreated
    partition deleted                                    nothing of it is read
    added partition does not start from offset 0         its earliest offset

An empty range loses nothing, except if the topic was recreated or the log truncated below its start.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_log.errors import DataLossError
from spark_log.ids import OffsetRange, TopicId, TopicPartition
from spark_log.log.partitions.lineage import UNKNOWN_EPOCH, diverging_offset
from spark_log.log.partitions.replication_rules import Truncation
from spark_log.spark.datasource.options.positions import show_all

_PREFIX = (
    "Some data may have been lost because they are not available in the log any more; either the data was aged out or "
    "the topic may have been deleted before all the data in the topic was processed. If you don't want your streaming "
    "query to fail on such cases, set the source option failOnDataLoss to false. Reason: "
)
_LOSSES_SHOWN_MAX = 20

NO_TOPIC_IDS: Mapping[str, TopicId] = {}
NO_EPOCHS: Mapping[TopicPartition, int] = {}
NO_TRUNCATIONS: Mapping[TopicPartition, Sequence[Truncation]] = {}


@dataclass(frozen=True)
class ResolvedRanges:
    """The ranges that a batch reads, and the reasons why they are smaller than requested."""

    ranges: dict[TopicPartition, OffsetRange]
    """A range, which may be empty, for every existing partition; 0 <= start <= end, within the available offsets."""
    losses: tuple[str, ...]
    """A sentence for each loss, to be logged as a warning. There are none under failOnDataLoss=true."""


def another_cluster(checkpoint: str | None, cluster_id: str) -> DataLossError:
    """Return the error under failOnDataLoss=true for a checkpoint that belongs to another cluster."""
    return DataLossError(
        f"{_PREFIX}The checkpoint is of cluster {checkpoint}, and the query reads cluster {cluster_id}:"
        " start with a new checkpoint."
    )


def resolve_ranges(
    start: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
    available: Mapping[TopicPartition, OffsetRange],
    *,
    fail_on_data_loss: bool,
    start_topic_ids: Mapping[str, TopicId] = NO_TOPIC_IDS,
    end_topic_ids: Mapping[str, TopicId] = NO_TOPIC_IDS,
    current_topic_ids: Mapping[str, TopicId] = NO_TOPIC_IDS,
    start_epochs: Mapping[TopicPartition, int] = NO_EPOCHS,
    end_epochs: Mapping[TopicPartition, int] = NO_EPOCHS,
    truncations: Mapping[TopicPartition, Sequence[Truncation]] = NO_TRUNCATIONS,
    group_id: str | None = None,
    first_batch: bool = False,
) -> ResolvedRanges:
    """Return the ranges of [start, end) that can be read now.

    `available` is [log start offset, high watermark) of the partitions that exist now; those that are not in `end` are
    ignored. `*_topic_ids` are topic -> id at the time when start and end were decided, and now; a topic without an id
    counts as unchanged. `*_epochs` are leader epochs at these times; a partition without one counts as not truncated.
    `truncations` are those of the topics that exist now. In the first batch of a query, an end below the start is no
    loss once the log reaches the start: older versions stored such ends under Trigger.AvailableNow. With
    `fail_on_data_loss`, raises DataLossError ("Some data may have been lost …"), which names up to 20 losses.
    """
    losses: list[str] = []
    ranges: dict[TopicPartition, OffsetRange] = {}
    gone_added = [tp for tp in end if tp not in start and tp not in available]
    if gone_added:
        losses.append(f"Cannot find initial offsets for partitions {show_all(gone_added)}. They may have been deleted.")
    deleted = [tp for tp in start if tp not in end]
    if deleted:
        losses.append(f"Partitions {show_all(deleted)} have been deleted.")

    recreated = {topic for topic in end_topic_ids if _differs(topic, start_topic_ids, end_topic_ids)}
    replaced = {topic for topic in end_topic_ids if _differs(topic, end_topic_ids, current_topic_ids)}
    for tp in sorted(end):
        first, last, now = start.get(tp), end[tp], available.get(tp)
        if first is None:
            if now is None:
                continue
            first = now.start
            if first != 0:
                losses.append(f"Added partition {tp} starts from {first} instead of 0.")
        elif tp.topic in recreated:
            losses.append(
                f"Topic {tp.topic} was deleted and created again: partition {tp} offset was changed "
                f"from {first} to {last}."
            )
            first = last if now is None else now.start
        elif (cut := _truncated(tp, first, start_epochs, truncations)) is not None and tp.topic not in replaced:
            losses.append(
                f"Partition {tp} offset was changed from {first} to {cut}: the records in offset [{cut}, {first})"
                " were lost by an unclean leader election after they had been read."
            )
            first = cut
        elif last < first:
            if not (first_batch and now is not None and first <= now.end):
                losses.append(
                    f"Partition {tp} offset was changed from {first} to {last}. This could either be a user error "
                    "that the start offset is set too high and this is the first batch, or records were lost by an "
                    "unclean leader election."
                )
            first = last
        if now is None or tp.topic in replaced:
            if first < last:
                losses.append(_unreadable(tp, first, last, group_id))
            if now is not None:
                ranges[tp] = OffsetRange(now.start, now.start)
            continue
        cut = _truncated(tp, last, end_epochs, truncations)
        if cut is not None:
            if max(first, cut) < last:
                losses.append(_unreadable(tp, max(first, cut), last, group_id))
            last = max(first, cut)
        ranges[tp] = _clip(tp, OffsetRange(first, last), now, group_id, losses)

    if losses and fail_on_data_loss:
        more = f" (and {len(losses) - _LOSSES_SHOWN_MAX} more)" if len(losses) > _LOSSES_SHOWN_MAX else ""
        raise DataLossError(_PREFIX + " ".join(losses[:_LOSSES_SHOWN_MAX]) + more)
    return ResolvedRanges(ranges, tuple(losses))


def admission_starts(
    start: Mapping[TopicPartition, int],
    available: Mapping[TopicPartition, OffsetRange],
    *,
    start_topic_ids: Mapping[str, TopicId] = NO_TOPIC_IDS,
    current_topic_ids: Mapping[str, TopicId] = NO_TOPIC_IDS,
    start_epochs: Mapping[TopicPartition, int] = NO_EPOCHS,
    truncations: Mapping[TopicPartition, Sequence[Truncation]] = NO_TRUNCATIONS,
) -> dict[TopicPartition, int]:
    """Return the offset from which each available partition will be read, to size the next batch (rate limit, minimum,
    metrics).

    New partitions, aged-out starts and recreated topics are read from their earliest offset, truncated partitions from
    the truncation. The keys are those of `available`. Losses are detected when the batch is planned, not here.
    """
    recreated = {topic for topic in current_topic_ids if _differs(topic, start_topic_ids, current_topic_ids)}
    starts: dict[TopicPartition, int] = {}
    for tp, now in available.items():
        if tp not in start or tp.topic in recreated:
            starts[tp] = now.start
        else:
            cut = _truncated(tp, start[tp], start_epochs, truncations)
            starts[tp] = max(start[tp] if cut is None else cut, now.start)
    return starts


def in_the_log(
    offsets: Mapping[TopicPartition, int],
    *,
    topic_ids: Mapping[str, TopicId],
    current_topic_ids: Mapping[str, TopicId],
    epochs: Mapping[TopicPartition, int],
    truncations: Mapping[TopicPartition, Sequence[Truncation]],
) -> list[TopicPartition]:
    """Return the partitions whose offsets are still positions in the log: the topic exists and was not recreated, and
    the log was not truncated below the offset.
    """
    return [
        tp
        for tp, offset in offsets.items()
        if tp.topic in current_topic_ids
        and not _differs(tp.topic, topic_ids, current_topic_ids)
        and _truncated(tp, offset, epochs, truncations) is None
    ]


def _truncated(
    tp: TopicPartition,
    offset: int,
    epochs: Mapping[TopicPartition, int],
    truncations: Mapping[TopicPartition, Sequence[Truncation]],
) -> int | None:
    return diverging_offset(offset, epochs.get(tp, UNKNOWN_EPOCH), truncations.get(tp, ()))


def _differs(topic: str, before: Mapping[str, TopicId], after: Mapping[str, TopicId]) -> bool:
    return topic in before and topic in after and before[topic] != after[topic]


def _clip(
    tp: TopicPartition, requested: OffsetRange, now: OffsetRange, group_id: str | None, losses: list[str]
) -> OffsetRange:
    first, last = max(requested.start, now.start), min(requested.end, now.end)
    if requested.size > 0:
        if requested.start < now.start:
            losses.append(_unreadable(tp, requested.start, min(requested.end, now.start), group_id))
        if requested.end > now.end:
            losses.append(_unreadable(tp, max(requested.start, now.end), requested.end, group_id))
    first = min(first, now.end)
    return OffsetRange(first, max(first, last))


def _unreadable(tp: TopicPartition, first: int, last: int, group_id: str | None) -> str:
    group = f" with consumer group {group_id}" if group_id else ""
    return f"Could not read records in offset [{first}, {last}) for topic partition {tp}{group}."
