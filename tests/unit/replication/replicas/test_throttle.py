"""The throttle: a caller that waits as long as it says stays within the rate."""

from hypothesis import given
from hypothesis import strategies as st

from spark_log.replication.replicas.throttle import Throttle

blocks = st.lists(st.tuples(st.integers(0, 3_000), st.floats(0, 5)), min_size=1, max_size=40)


@given(st.integers(1, 1_000), blocks)
def test_no_interval_exceeds_the_rate_and_one_second_of_saved_bytes(rate, wanted):
    now_s, sent = 0.0, []
    throttle = Throttle(rate, now_s=lambda: now_s)
    for size, idle_s in wanted:
        now_s += idle_s
        now_s += throttle.take(size)
        sent.append((now_s, size))
    largest = max(size for size, _ in wanted)
    for first, (start_s, _) in enumerate(sent):
        total = 0
        for at_s, size in sent[first:]:
            total += size
            assert total <= rate * (at_s - start_s + 1) + largest + 1e-3


@given(st.integers(1, 1_000), st.lists(st.integers(0, 3_000), min_size=1, max_size=40))
def test_the_throttle_waits_no_longer_than_the_rate_requires(rate, sizes):
    now_s = 0.0
    throttle = Throttle(rate, now_s=lambda: now_s)
    for size in sizes:
        now_s += throttle.take(size)
    assert now_s <= max(0, sum(sizes) - rate) / rate + 1e-6


def test_copies_that_share_a_throttle_share_its_rate():
    throttle = Throttle(100, now_s=lambda: 0.0)
    assert [throttle.take(100) for _ in range(3)] == [0.0, 1.0, 2.0]
