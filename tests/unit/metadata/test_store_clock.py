"""A wall clock that was set is not trusted for a day, unless it is set back."""

from spark_log.metadata.store_clock import DISTRUSTED_MS, STEP_MS_MAX, ClockWatch

DAY = 86_400_000
NOON = 1_700_000_000_000


def test_time_that_passes_on_both_clocks_is_no_step():
    watch = ClockWatch()
    for days in (0, 1, 30, 400):
        drift = days * 60_000 if days < 40 else 40 * 60_000
        assert watch.is_steady(NOON + days * DAY + drift, days * DAY)


def test_a_step_is_not_trusted_for_a_day():
    for step in (8 * DAY, -8 * DAY, STEP_MS_MAX + 1):
        watch = ClockWatch()
        assert watch.is_steady(NOON, 0)
        assert not watch.is_steady(NOON + step, 0)
        assert not watch.is_steady(NOON + step + DISTRUSTED_MS - 1, DISTRUSTED_MS - 1)
        assert watch.is_steady(NOON + step + DISTRUSTED_MS, DISTRUSTED_MS)
        assert watch.is_steady(NOON + step + 2 * DISTRUSTED_MS, 2 * DISTRUSTED_MS)


def test_a_clock_that_is_set_back_is_trusted_again():
    watch = ClockWatch()
    assert watch.is_steady(NOON, 0)
    assert not watch.is_steady(NOON + 8 * DAY, 0)
    assert watch.is_steady(NOON + 1_000, 1_000)


def test_each_further_step_begins_another_day():
    watch = ClockWatch()
    assert watch.is_steady(NOON, 0)
    assert not watch.is_steady(NOON + 8 * DAY, 0)
    assert not watch.is_steady(NOON + 17 * DAY, DAY - 1)
    assert not watch.is_steady(NOON + 18 * DAY - 2, 2 * DAY - 2)
