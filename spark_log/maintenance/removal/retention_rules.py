"""Decides which segments leave the start of a log, and why: the rules of retention. Pure."""

from collections.abc import Sequence
from enum import Enum

from spark_log.config import TopicConfig
from spark_log.maintenance.rewrite.rewrite_plan import Segment
from spark_log.text import bytes_of, exact_duration_of


class Reason(Enum):
    """Why a segment leaves the log."""

    BELOW = "below the log start offset"
    TIME = "retention.ms"
    SIZE = "retention.bytes"

    def describe(self, config: TopicConfig) -> str:
        """Return the reason with the value of its config."""
        match self:
            case Reason.BELOW:
                return str(self.value)
            case Reason.TIME:
                return f"{self.value}={config.retention_ms} ({exact_duration_of(config.retention_ms)})"
            case Reason.SIZE:
                return f"{self.value}={config.retention_bytes} ({bytes_of(config.retention_bytes)})"


def is_expired(timestamp_ms: int, config: TopicConfig, now_ms: int) -> bool:
    """Whether retention.ms drops a segment with this largest timestamp."""
    return config.deletes and config.retention_ms >= 0 and now_ms - timestamp_ms > config.retention_ms


def time_of(segment: Segment) -> int:
    """Return a segment's largest timestamp in ms; its append time if compaction has dropped all its records."""
    return segment.max_timestamp_ms if segment.max_timestamp_ms >= 0 else segment.appended_ms


def leaving(
    segments: Sequence[Segment],
    config: TopicConfig,
    log_start: int,
    high_watermark: int,
    total_bytes: int,
    now_ms: int,
) -> list[tuple[Segment, Reason]]:
    """Return the segments that leave the log, by Kafka's rules, with the reasons.

    `segments` are the partition's first ones by offset; `total_bytes` is the size of all its segments. Whole segments
    below the high watermark are dropped from the start, up to the first segment that stays. A segment is dropped if its
    largest timestamp is too old, if the log would still have retention.bytes without it, or if it lies below the log
    start already.
    """
    gone: list[tuple[Segment, Reason]] = []
    left = total_bytes
    for segment in segments:
        if segment.end_offset > high_watermark:
            break
        if segment.end_offset <= log_start:
            reason = Reason.BELOW
        elif is_expired(time_of(segment), config, now_ms):
            reason = Reason.TIME
        elif config.deletes and config.retention_bytes >= 0 and left - segment.bytes >= config.retention_bytes:
            reason = Reason.SIZE
        else:
            break
        left -= segment.bytes
        gone.append((segment, reason))
    return gone
