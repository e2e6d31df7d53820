"""Which quota applies to a client, and how much clients can use."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_log.cluster.quotas.rules import (
    BURST_S,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    Bucket,
    bucket_of_address,
    bucket_of_client,
    check_value,
    entity_of,
    matches,
    used_until_s,
    wait_s,
)
from spark_log.errors import IllegalArgumentError

ORDER = [
    [("user", "ann"), ("client-id", "app")],
    [("user", "ann"), ("client-id", None)],
    [("user", "ann")],
    [("user", None), ("client-id", "app")],
    [("user", None), ("client-id", None)],
    [("user", None)],
    [("client-id", "app")],
    [("client-id", None)],
]
"""As Kafka's documentation lists them: the first that exists decides."""

OTHERS = [
    [("user", "bob"), ("client-id", "app")],
    [("user", "bob")],
    [("user", "ann"), ("client-id", "tool")],
    [("client-id", "tool")],
    [("ip", "127.0.0.1")],
]


@given(st.sets(st.integers(0, len(ORDER) - 1)), st.sets(st.integers(0, len(OTHERS) - 1)))
def test_the_most_specific_entity_decides_whatever_others_have(present, others):
    quotas = {entity_of(ORDER[n]): {PRODUCER_BYTE_RATE: 10.0 + n, CONSUMER_BYTE_RATE: 5.0} for n in present}
    quotas |= {entity_of(OTHERS[n]): {PRODUCER_BYTE_RATE: 1.0} for n in others}
    limit = bucket_of_client(quotas, PRODUCER_BYTE_RATE, "ann", "app")
    assert (limit.rate if limit else None) == min((10.0 + n for n in present), default=None)
    assert bucket_of_client(quotas, REQUEST_PERCENTAGE, "ann", "app") is None


@pytest.mark.parametrize(
    ("parts", "names"),
    [
        ([("user", None), ("client-id", None)], (("client-id", "app"), ("user", "ann"))),
        ([("user", None)], (("user", "ann"),)),
        ([("client-id", None)], (("client-id", "app"),)),
    ],
)
def test_a_default_gives_each_client_a_quota_of_its_own(parts, names):
    quotas = {entity_of(parts): {REQUEST_PERCENTAGE: 50.0}}
    limit = bucket_of_client(quotas, REQUEST_PERCENTAGE, "ann", "app")
    assert limit == Bucket(REQUEST_PERCENTAGE, names, 0.5)


def test_addresses_have_their_own_limit_or_the_default():
    quotas = {entity_of([("ip", None)]): {CONNECTION_CREATION_RATE: 5.0}}
    quotas[entity_of([("ip", "10.0.0.1")])] = {CONNECTION_CREATION_RATE: 9.0}
    assert [bucket_of_address(quotas, ip).rate for ip in ("10.0.0.1", "10.0.0.2")] == [9.0, 5.0]
    assert bucket_of_address({}, "10.0.0.1") is None


@given(rate=st.floats(1, 1e9), sizes=st.lists(st.floats(0.001, 3), min_size=1, max_size=50))
def test_requests_that_wait_for_their_turn_use_no_more_than_the_rate(rate, sizes):
    """`sizes`: of requests, in seconds of the quota. Each is admitted when the use before it is paid for."""
    now_s = until_s = used = 0.0
    for size in sizes:
        now_s += wait_s(until_s, now_s)
        used += size
        until_s = used_until_s(until_s, now_s, size * rate, rate)
        assert used <= now_s + BURST_S + max(sizes) + 1e-6
    assert until_s == pytest.approx(used, rel=1e-6) or until_s > used  # what is used is always paid for


def test_unused_time_is_not_saved_up():
    assert used_until_s(5.0, now_s=100.0, units=10.0, rate=10.0) == 101.0
    assert wait_s(101.0, now_s=100.0) == 0.0
    assert wait_s(102.5, now_s=100.0) == 1.5


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [("host", "a")],
        [("user", "a"), ("user", "b")],
        [("user", "a"), ("ip", "10.0.0.1")],
        [("ip", "nowhere")],
        [("user", "")],
        [("user", "x" * 1_001)],
    ],
)
def test_entities_that_do_not_exist_are_refused(parts):
    with pytest.raises(IllegalArgumentError):
        entity_of(parts)


@pytest.mark.parametrize(
    ("parts", "config", "value"),
    [
        ([("user", "a")], "retention.ms", 1.0),
        ([("user", "a")], CONNECTION_CREATION_RATE, 1.0),
        ([("ip", None)], PRODUCER_BYTE_RATE, 1.0),
        ([("user", "a")], PRODUCER_BYTE_RATE, 0.0),
        ([("user", "a")], PRODUCER_BYTE_RATE, -1.0),
        ([("user", "a")], PRODUCER_BYTE_RATE, 1.5),
        ([("user", "a")], REQUEST_PERCENTAGE, float("nan")),
        ([("user", "a")], REQUEST_PERCENTAGE, float("inf")),
    ],
)
def test_values_that_mean_nothing_are_refused(parts, config, value):
    with pytest.raises(IllegalArgumentError):
        check_value(entity_of(parts), config, value)


@pytest.mark.parametrize(
    ("exact", "present", "strict", "found"),
    [
        ({}, [], False, [0, 1, 2, 3]),
        ({}, [], True, []),
        ({"user": "ann"}, [], False, [0, 1]),
        ({"user": "ann"}, [], True, [1]),
        ({"user": None}, [], False, [2]),
        ({}, ["client-id"], False, [0, 3]),
        ({"user": "ann"}, ["client-id"], True, [0]),
    ],
)
def test_filters_find_the_entities_that_kafka_finds(exact, present, strict, found):
    entities = [
        entity_of(parts)
        for parts in (
            [("user", "ann"), ("client-id", "app")],
            [("user", "ann")],
            [("user", None)],
            [("client-id", "app")],
        )
    ]
    assert [n for n, entity in enumerate(entities) if matches(entity, exact, frozenset(present), strict)] == found
