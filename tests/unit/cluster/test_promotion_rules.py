"""The rule that accepts a promotion of the metadata store without a person, and the one that keeps unnamed files."""

from dataclasses import replace

import pytest

from spark_log.cluster.promotion_rules import BEAT_AHEAD_MS_MAX, BEFORE_PROMOTION_MS, Promotion, kept_since_ms, refusal

NOW_MS, AGE_MS, DAY_MS = 10**12, 300_000, 86_400_000
FAILOVER = Promotion(
    same_system=True,
    recorded_timeline=1,
    timeline=2,
    beat=7,
    beat_ms=NOW_MS - AGE_MS,
    synchronous=True,
    beats_of_log_dirs=(7, 6, None),
    now_ms=NOW_MS,
)


def test_a_failover_to_a_synchronous_standby_is_accepted():
    assert refusal(FAILOVER, "synchronous", AGE_MS) is None
    assert refusal(replace(FAILOVER, timeline=5, beats_of_log_dirs=(3,)), "synchronous", AGE_MS) is None
    assert refusal(replace(FAILOVER, beat_ms=NOW_MS + BEAT_AHEAD_MS_MAX), "synchronous", AGE_MS) is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"same_system": False}, "another system"),
        ({"timeline": 1}, "does not follow"),
        ({"synchronous": False}, "not synchronous"),
        ({"beat_ms": NOW_MS - AGE_MS - 1}, "older than"),
        ({"beat_ms": None, "synchronous": False}, "no beat"),
        ({"beat_ms": NOW_MS + BEAT_AHEAD_MS_MAX + 1}, "60 s in the future"),
        ({"beats_of_log_dirs": ()}, "no log dir answers"),
        ({"beats_of_log_dirs": (None,)}, "no log dir has a beat"),
        ({"beats_of_log_dirs": (3, 8)}, "beat 8"),
    ],
)
def test_anything_else_needs_a_person(change, reason):
    assert reason in (refusal(replace(FAILOVER, **change), "synchronous", AGE_MS) or "")


def test_the_setting_decides_first():
    assert refusal(FAILOVER, "manual", AGE_MS) == "store.promotion.accept is manual"


@pytest.mark.parametrize(
    ("accepted_ms", "promoted_ms", "expected"),
    [
        (None, None, None),
        (NOW_MS - DAY_MS + 1, None, 0),
        (NOW_MS - DAY_MS, None, None),
        (None, NOW_MS - 1, NOW_MS - 1 - DAY_MS),
        (None, NOW_MS - DAY_MS, None),
        (NOW_MS - 1, NOW_MS - 2, 0),
        (NOW_MS - DAY_MS, NOW_MS - 1, NOW_MS - 1 - DAY_MS),
    ],
)
def test_unnamed_files_are_kept_for_a_time_after_an_acceptance(accepted_ms, promoted_ms, expected):
    assert kept_since_ms(accepted_ms, promoted_ms, NOW_MS, DAY_MS) == expected


def test_files_of_a_short_time_before_a_promotion_are_kept_in_any_case():
    assert kept_since_ms(None, NOW_MS - 1, NOW_MS, 10) == NOW_MS - 1 - BEFORE_PROMOTION_MS
