"""Decides when the tails of a topic become files, and its Delta tables list its files. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from spark_log.config import TopicConfig

CHECK_MS_MIN = 1_000
"""Least time between two looks at the tails of a topic."""
PUBLISH_MS = 1_000
"""Least time between two publications of new files of a topic in the background: appends share them."""


@dataclass(frozen=True)
class Tail:
    """The inline tail of a partition; `first_appended_ms` is the append time of its first blob, by the store's
    clock.
    """

    partition: int
    bytes: int
    first_appended_ms: int


def due_tails(tails: Sequence[Tail], config: TopicConfig, now_ms: int, ahead_ms: int = 0) -> list[Tail]:
    """Return the tails of a topic that are to be sealed. `ahead_ms` is the time until the next check.

    If one tail has reached delta.max.lag.ms, all are due: they make one Delta commit. Otherwise due are the tails that
    are older than segment.ms, or as large as inline.tail.bytes (sealing them failed before).
    """
    if any(lag_is_over(tail, config, now_ms + ahead_ms) for tail in tails):
        return list(tails)
    return [
        tail
        for tail in tails
        if tail.bytes >= config.inline_tail_bytes or now_ms - tail.first_appended_ms >= config.segment_ms
    ]


def lag_is_over(tail: Tail, config: TopicConfig, now_ms: int) -> bool:
    """Whether to seal the tail for delta.max.lag.ms, of which the last tenth is reserved for sealing and publication;
    also if the clock was set back since the tail's first record.
    """
    return config.delta_max_lag_ms >= 0 and not 0 <= now_ms - tail.first_appended_ms < seal_after_ms(config)


def seal_after_ms(config: TopicConfig) -> int:
    """Return the time that the first record of a tail may wait, in ms."""
    return config.delta_max_lag_ms * 9 // 10


def pause_ms(config: TopicConfig) -> int:
    """Return the rest of delta.max.lag.ms after `seal_after_ms`. A topic without files for so long makes a pause."""
    return config.delta_max_lag_ms - seal_after_ms(config)


def look_after_ms(config: TopicConfig) -> int:
    """Return the time until tails that come now may be due."""
    return max(CHECK_MS_MIN, seal_after_ms(config))


def retry_after_ms(config: TopicConfig, failures: int) -> int:
    """Return the wait before a retry: `pause_ms`, doubled for each of `failures`, up to `look_after_ms`."""
    return min(look_after_ms(config), max(CHECK_MS_MIN, pause_ms(config)) * (1 << min(failures, 30)))


def next_look_ms(tails: Sequence[Tail], config: TopicConfig, now_ms: int) -> int | None:
    """Return the time until one of these tails, which are not due, is due; None means never."""
    if not tails or config.delta_max_lag_ms < 0:
        return None
    oldest_ms = min(tail.first_appended_ms for tail in tails)
    return max(CHECK_MS_MIN, oldest_ms + seal_after_ms(config) - now_ms)
