"""Decides when the promotion of a metadata store is accepted without a person, and which files are kept although a
promoted or restored store does not name them.
"""

from collections.abc import Collection
from dataclasses import dataclass

BEFORE_PROMOTION_MS = 600_000
"""Unnamed files that were modified at most this long before a promotion was accepted without a person are kept for
file.delete.delay.ms after it.
"""


BEAT_AHEAD_MS_MAX = 60_000
"""The last beat may be this much later than the present time: the clocks of the two servers may differ so far. If they
differ more, the age of the beat is unknown.
"""


@dataclass(frozen=True)
class Promotion:
    """A PostgreSQL server that is not the recorded one, as the coordinator sees it."""

    same_system: bool
    """Whether the system identifiers are equal, and the databases."""
    recorded_timeline: int
    timeline: int
    beat: int
    """The number of the last beat that this server has."""
    beat_ms: int | None
    """The time of the last beat by the clock of the server that was the primary then, None if there was none."""
    synchronous: bool
    """Whether synchronous_standby_names was set at that beat."""
    beats_of_log_dirs: Collection[int | None]
    """The beats of the log dirs that can be read; None stands for a log dir without a beat."""
    now_ms: int
    """The present time of the server's clock."""


def refusal(promotion: Promotion, setting: str, age_ms_max: int) -> str | None:
    """Return why the promotion needs a person, or None if it is accepted. `setting` is store.promotion.accept.

    A promotion is accepted if the server is a promoted standby of the recorded one, its last beat is at most
    `age_ms_max` old and at most BEAT_AHEAD_MS_MAX in the future, replication was synchronous then, and the log dirs
    have beats, but none later than the server's. Then the server lacks no acknowledged transaction.
    """
    if setting != "synchronous":
        return "store.promotion.accept is manual"
    if not promotion.same_system:
        return "it is another system or database"
    if promotion.timeline <= promotion.recorded_timeline:
        return f"its timeline {promotion.timeline} does not follow timeline {promotion.recorded_timeline}"
    if promotion.beat_ms is None:
        return "it has no beat: before the promotion no coordinator ran, or store.promotion.accept was not synchronous"
    if not promotion.synchronous:
        return "replication was not synchronous at its last beat"
    if promotion.now_ms - promotion.beat_ms > age_ms_max:
        return f"its last beat is older than store.promotion.max.age.ms={age_ms_max}"
    if promotion.beat_ms - promotion.now_ms > BEAT_AHEAD_MS_MAX:
        return (
            f"its last beat is {(promotion.beat_ms - promotion.now_ms) // 1000} s in the future: the servers' clocks"
            " differ, so that its age is unknown"
        )
    if not promotion.beats_of_log_dirs:
        return "no log dir answers"
    newest = max((number for number in promotion.beats_of_log_dirs if number is not None), default=None)
    if newest is None:
        return "no log dir has a beat"
    if newest > promotion.beat:
        return f"a log dir has beat {newest}, and the server only beat {promotion.beat}: it lacks transactions"
    return None


def kept_since_ms(accepted_ms: int | None, promoted_ms: int | None, now_ms: int, delay_ms: int) -> int | None:
    """Return the time T such that unnamed segment files modified at or after T are kept, or None to keep none.

    `accepted_ms` is when a person last accepted the store, `promoted_ms` when a promotion was last accepted without a
    person. A store that a person accepted may lack any append, so all files are kept for `delay_ms`
    (file.delete.delay.ms). After a promotion, files of the last `delay_ms` before it, at least BEFORE_PROMOTION_MS, are
    kept for `delay_ms`: they include the files that the promotion before this one protects.
    """
    if accepted_ms is not None and now_ms - accepted_ms < delay_ms:
        return 0
    if promoted_ms is not None and now_ms - promoted_ms < delay_ms:
        return promoted_ms - max(BEFORE_PROMOTION_MS, delay_ms)
    return None
