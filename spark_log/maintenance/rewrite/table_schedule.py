"""Decides when the tails of a topic become files, and its Delta tables list its files. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from spark_log.config import TopicConfig

CHECK_MS_MIN = 250
"""Least time between two checks of the tails of a topic."""
_RESERVE_MS = 2_000
_RETRY_MS_MIN, _RETRY_MS_MAX_MIN = 1_000, 5_000
_ROUNDS_TAKE_MAX = 10
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


def due_tails(tails: Sequence[Tail], config: TopicConfig, now_ms: int, cost_ms: float = 0.0) -> list[Tail]:
    """Return the tails of a topic that are to be sealed. `cost_ms` is the time that the topic's last rounds took.

    If one tail has reached delta.max.lag.ms, all are due: they make one Delta commit. Otherwise due are the tails that
    are older than segment.ms, or as large as inline.tail.bytes (sealing them failed before).
    """
    if any(_lag_is_over(tail, config, now_ms, cost_ms) for tail in tails):
        return list(tails)
    return [
        tail
        for tail in tails
        if tail.bytes >= config.inline_tail_bytes or now_ms - tail.first_appended_ms >= config.segment_ms
    ]


def deadline_ms(tails: Sequence[Tail], config: TopicConfig) -> int:
    """Return the time at which delta.max.lag.ms of the oldest record is over; without a limit, that of its append."""
    return min(tail.first_appended_ms for tail in tails) + max(config.delta_max_lag_ms, 0)


def _lag_is_over(tail: Tail, config: TopicConfig, now_ms: int, cost_ms: float) -> bool:
    """Whether to seal the tail for delta.max.lag.ms; also if the clock was set back since the tail's first record."""
    return config.delta_max_lag_ms >= 0 and not 0 <= now_ms - tail.first_appended_ms < seal_after_ms(config, cost_ms)


def seal_after_ms(config: TopicConfig, cost_ms: float = 0.0) -> int:
    """Return the time that the first record of a tail may wait, in ms.

    The rest of delta.max.lag.ms is reserved for sealing and publication (`pause_ms`). A topic whose rounds take long
    waits longer, so that its rounds take at most a tenth of the time.
    """
    return max(config.delta_max_lag_ms - pause_ms(config), _ROUNDS_TAKE_MAX * int(cost_ms))


def pause_ms(config: TopicConfig) -> int:
    """Return the part of delta.max.lag.ms that is reserved: a tenth, but 2 s if that is not more than two fifths. If a
    topic gets no files for this time, its appends count as paused.
    """
    return max(config.delta_max_lag_ms // 10, min(_RESERVE_MS, config.delta_max_lag_ms * 2 // 5))


def average_cost_ms(before_ms: float | None, last_ms: float) -> float:
    """Return the moving average of the time that a topic's rounds take; None before the first.

    The first round of a process does not count: it opens or creates the table, which later rounds do not.
    """
    if before_ms is None:
        return 0.0
    return before_ms + (last_ms - before_ms) / 4 if before_ms else last_ms


@dataclass(frozen=True)
class Attempts:
    """The rounds of a topic: the time that they take as a moving average (None before the first), the number of
    failures in a row, and when the next one may begin, by the monotonic clock.
    """

    cost_ms: float | None = None
    failures: int = 0
    from_s: float = -math.inf


def after_round(before: Attempts, config: TopicConfig, *, now_s: float, seconds: float, done: bool) -> Attempts:
    """Return the attempts of a topic after a round that took `seconds`. A round is `done` if nothing due is left.

    The rounds of a topic are at least PUBLISH_MS apart. A topic that fails, for example because a replica is lost or
    an external schema registry does not answer, waits longer and longer, so that it does not delay the others.
    """
    if done:
        return Attempts(average_cost_ms(before.cost_ms, 1000 * seconds), 0, now_s + PUBLISH_MS / 1000)
    wait_ms = retry_after_ms(config, before.failures, 1000 * seconds)
    return Attempts(before.cost_ms, before.failures + 1, now_s + wait_ms / 1000)


def merges_from_s(now_s: float, seconds: float) -> float:
    """Return when the loop of a client may merge again after merges that took `seconds`: they take at most a quarter of
    its time, since they delay its rounds.
    """
    return now_s + 3 * seconds


def look_after_ms(config: TopicConfig, cost_ms: float = 0.0) -> int:
    """Return the time until a tail that begins now may be due."""
    return max(CHECK_MS_MIN, seal_after_ms(config, cost_ms))


def retry_after_ms(config: TopicConfig, failures: int, took_ms: float = 0.0) -> int:
    """Return the wait before a retry: `pause_ms`, doubled for each of `failures`, up to `look_after_ms`; more if the
    last try took long, up to a minute or the lag.
    """
    longest_ms = max(_RETRY_MS_MAX_MIN, look_after_ms(config))
    wait_ms = min(longest_ms, max(_RETRY_MS_MIN, pause_ms(config)) * (1 << min(failures, 30)))
    return max(wait_ms, min(_ROUNDS_TAKE_MAX * int(took_ms), max(60_000, config.delta_max_lag_ms)))


def next_look_ms(tails: Sequence[Tail], config: TopicConfig, now_ms: int, cost_ms: float = 0.0) -> int | None:
    """Return the time until one of these tails, which are not due, is due; None means never."""
    if not tails or config.delta_max_lag_ms < 0:
        return None
    oldest_ms = min(tail.first_appended_ms for tail in tails)
    return max(CHECK_MS_MIN, oldest_ms + seal_after_ms(config, cost_ms) - now_ms)
