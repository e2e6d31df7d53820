"""Quotas of Kafka clients: asked and changed over the wire, and kept by all gateways together."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import pytest
from kafka.protocol.admin import AlterClientQuotasRequest, DescribeClientQuotasRequest
from kafka.protocol.metadata import MetadataRequest

from spark_log.clients.admin.audit import read_changes
from spark_log.cluster.quotas.quota_rows import delete_old_use, read_quotas, record_use, write_quotas
from spark_log.cluster.quotas.rules import BURST_S, Bucket, entity_of
from spark_log.log.records.kafka_batch.encode import encode
from tests.support.gateway_wire import WireConnection, fetch_request, frame_of, produce_request
from tests.support.kafka_batches import stored
from tests.support.server_processes import GatewayProcess
from tests.support.topics import make
from tests.support.waiting import wait_until

INVALID_REQUEST = 42
NOW_MS = 1_790_000_000_000
EVERY_CLIENT = entity_of([("client-id", None)])
PRODUCER, OTHER = (Bucket("producer_byte_rate", (("user", name),), rate=1.0) for name in "ab")


@pytest.fixture
def gateway(cluster, gateway):
    make(cluster, "flights", 1)
    return gateway


def alteration(*entries, validate_only=False):
    kind = AlterClientQuotasRequest.EntryData
    return AlterClientQuotasRequest(
        entries=[
            kind(
                entity=[kind.EntityData(entity_type=type_, entity_name=name) for type_, name in entity],
                ops=[kind.OpData(key=key, value=value or 0.0, remove=value is None) for key, value in values.items()],
            )
            for entity, values in entries
        ],
        validate_only=validate_only,
    )


def described(connection, *components, strict=False):
    kind = DescribeClientQuotasRequest.ComponentData
    request = DescribeClientQuotasRequest(
        components=[kind(entity_type=type_, match_type=how, match=name) for type_, how, name in components],
        strict=strict,
    )
    answer = connection.exchange(request, 1)
    assert answer.error_code == 0, answer.error_message
    return {
        tuple((part.entity_type, part.entity_name) for part in entry.entity): {
            value.key: value.value for value in entry.values
        }
        for entry in answer.entries
    }


def batch_of(value):
    return encode(stored([(NOW_MS, None, value, [])]), base_offset=0, last_offset=0, leader_epoch=0)


def produce(records):
    return produce_request({"flights": records})


def fetch(max_bytes):
    return fetch_request("flights", max_bytes=max_bytes, min_bytes=1)


def test_quotas_are_changed_and_found_over_the_wire(gateway, cluster):
    ann, anyone = [("user", "ann"), ("client-id", "app")], [("user", None)]
    with WireConnection(gateway.port) as connection:
        request = alteration(
            (ann, {"producer_byte_rate": 1e6, "request_percentage": 12.5}),
            (anyone, {"consumer_byte_rate": 5e5}),
            ([("user", "ann"), ("host", "a")], {"producer_byte_rate": 1.0}),
            ([("user", "bob")], {"producer_byte_rate": -1.0}),
        )
        answer = connection.exchange(request, 1)
        assert [entry.error_code for entry in answer.entries] == [0, 0, INVALID_REQUEST, INVALID_REQUEST]
        expected = {tuple(sorted(ann)): {"producer_byte_rate": 1e6, "request_percentage": 12.5}}
        assert described(connection, ("user", 0, "ann")) == expected
        assert described(connection) == expected | {(("user", None),): {"consumer_byte_rate": 5e5}}
        connection.exchange(alteration((ann, {"producer_byte_rate": 2.0}), validate_only=True), 1)
        assert described(connection, ("user", 0, "ann")) == expected
        connection.exchange(alteration((ann, {"producer_byte_rate": None, "request_percentage": 50.0})), 1)
        assert described(connection, ("client-id", 2, None)) == {tuple(sorted(ann)): {"request_percentage": 50.0}}
    assert [
        (change.target, change.parameters, change.outcome)
        for change in reversed(read_changes(cluster, action="AlterClientQuotas", who="User:ANONYMOUS"))
    ] == [
        ("client-id app, user ann", {"producer_byte_rate": 1e6, "request_percentage": 12.5}, "succeeded"),
        ("user *", {"consumer_byte_rate": 5e5}, "succeeded"),
        ("user bob", {"producer_byte_rate": -1.0}, "failed"),
        ("client-id app, user ann", {"producer_byte_rate": None, "request_percentage": 50.0}, "succeeded"),
    ]


@pytest.mark.on_sqlite
def test_a_client_over_its_quota_waits_for_the_time_that_it_is_told(gateway, cluster):
    rate = 200_000
    records = batch_of(b"x" * rate)
    write_quotas(cluster.store, [(EVERY_CLIENT, {"producer_byte_rate": rate, "consumer_byte_rate": rate})])
    with WireConnection(gateway.port) as connection:
        connection.exchange(alteration((EVERY_CLIENT, {"request_percentage": 1_000.0})), 1)  # read anew by now
        began_s = time.monotonic()
        connection.exchange(produce(records), 9)  # the burst
        assert connection.exchange(produce(records), 9).throttle_time_ms > 0
        connection.exchange(produce(batch_of(b"x")), 9)
        assert time.monotonic() - began_s >= 2 * len(records) / rate - BURST_S - 0.01
        first, second = (connection.exchange(fetch(10_000_000), 12) for _ in range(2))
        sizes = [len(answer.responses[0].partitions[0].records) for answer in (first, second)]
        assert all(size < 2 * len(records) for size in sizes), "a fetch is cut to what may be read in a burst"
        assert second.throttle_time_ms > 0


RATE, SIZE, REQUESTS = 500_000, 250_000, 8
"""Of clients that try to pass a quota: bytes per second, bytes of a request, number of requests."""


def check_rate(began_s, answered_s, more):
    """The answers came as the quota allows, and at most `more` requests too early."""
    for count, at_s in enumerate(sorted(answered_s), start=1):
        assert count * SIZE <= RATE * (at_s - began_s + BURST_S) + more * SIZE, (count, at_s - began_s)


def limit(port, **values):
    with WireConnection(port) as connection:
        answer = connection.exchange(alteration((EVERY_CLIENT, values)), 1)
        assert [entry.error_code for entry in answer.entries] == [0]


@pytest.mark.on_sqlite
def test_connecting_again_does_not_pass_a_quota(gateway, cluster_address, tmp_path):
    limit(gateway.port, producer_byte_rate=float(RATE))
    with GatewayProcess(tmp_path, cluster_address) as other:
        began_s, answered_s = time.monotonic(), []
        for number in range(REQUESTS):
            with WireConnection((gateway, other)[number % 2].port) as connection:
                connection.exchange(produce(batch_of(b"x" * SIZE)), 9)
            answered_s.append(time.monotonic())
    check_rate(began_s, answered_s, more=3)  # one, and one for each gateway that does not know of it yet


@pytest.mark.slow
@pytest.mark.on_sqlite
def test_more_connections_do_not_pass_a_quota(gateway):
    limit(gateway.port, producer_byte_rate=float(RATE), consumer_byte_rate=float(RATE))
    for request, version in ((produce(batch_of(b"x" * SIZE)), 9), (fetch(SIZE), 12)):
        frame = frame_of(request, version, "test")

        def ask(_, frame=frame):
            with WireConnection(gateway.port) as connection:
                connection.send_frame(frame)
                connection.receive_bytes()
                return time.monotonic()

        began_s = time.monotonic()
        with ThreadPoolExecutor(REQUESTS) as pool:
            check_rate(began_s, list(pool.map(ask, range(REQUESTS))), more=1)


@pytest.mark.on_sqlite
def test_a_large_request_is_paid_for_until_the_quota_changes(gateway):
    rate = 20_000
    limit(gateway.port, producer_byte_rate=float(rate))
    with WireConnection(gateway.port) as connection, WireConnection(gateway.port) as waiting:
        told_ms = connection.exchange(produce(batch_of(b"x" * 30 * rate)), 9).throttle_time_ms
        assert told_ms > 28_000
        waiting.send(produce(batch_of(b"x")), 9)
        with WireConnection(gateway.port) as gone:
            gone.send(produce(batch_of(b"gone")), 9)
        with WireConnection(gateway.port) as unfinished:  # its bytes never come, and are not charged
            unfinished.send_start(produce(batch_of(b"x" * 30 * rate)), 9, size=100)
        assert not waiting.readable(1.0)
        limit(gateway.port, producer_byte_rate=1e6)
        assert waiting.receive(produce(b""), 9).responses[0].partition_responses[0].error_code == 0
        answer = connection.exchange(produce(batch_of(b"last")), 9)
        assert answer.throttle_time_ms == 0 and answer.responses[0].partition_responses[0].base_offset == 2


@pytest.mark.on_sqlite
def test_the_cpu_time_of_requests_is_limited_on_all_connections_together(gateway):
    limit(gateway.port, request_percentage=0.001)
    with WireConnection(gateway.port) as connection, WireConnection(gateway.port) as another:
        assert connection.exchange(MetadataRequest(topics=None), 9).throttle_time_ms > 5_000
        another.send(MetadataRequest(topics=None), 9)
        assert not another.readable(0.5)


@pytest.mark.on_sqlite
def test_unlimited_clients_are_not_throttled(gateway, cluster):
    write_quotas(cluster.store, [(entity_of([("client-id", "other")]), {"producer_byte_rate": 1.0})])
    with WireConnection(gateway.port) as connection:
        connection.exchange(alteration(([("client-id", "other")], {"consumer_byte_rate": 1.0})), 1)
        answers = [connection.exchange(produce(batch_of(b"x" * 1000)), 9) for _ in range(3)]
        assert [answer.throttle_time_ms for answer in answers] == [0, 0, 0]


@pytest.mark.on_sqlite
def test_connections_of_an_address_are_limited(gateway, cluster):
    with WireConnection(gateway.port) as connection:
        answer = connection.exchange(alteration(([("ip", "127.0.0.1")], {"connection_creation_rate": 2.0})), 1)
        assert [entry.error_code for entry in answer.entries] == [0]
        served = refused = 0
        with ExitStack() as stack:  # all at once, so that a slow machine does not give them the time that they need
            for another in [stack.enter_context(WireConnection(gateway.port)) for _ in range(30)]:
                try:
                    another.exchange(MetadataRequest(topics=[]), 9)
                    served += 1
                except (AssertionError, ConnectionError):
                    refused += 1
        assert refused > 0 and served > 0


@pytest.mark.on_sqlite
def test_refused_connections_do_not_keep_an_address_out(gateway):
    with WireConnection(gateway.port) as connection:
        connection.exchange(alteration(([("ip", "127.0.0.1")], {"connection_creation_rate": 1.0})), 1)
    for _ in range(60):
        WireConnection(gateway.port).__exit__()

    def is_served():  # which takes for ever if each refused connection counts
        with WireConnection(gateway.port) as connection, suppress(AssertionError, ConnectionError):
            return connection.exchange(MetadataRequest(topics=[]), 9)

    wait_until(is_served)


def test_gateways_add_up_what_they_have_charged(cluster):
    store = cluster.store
    assert record_use(store, {PRODUCER: 5.0, OTHER: 2.0}) == pytest.approx({PRODUCER: 5.0, OTHER: 2.0})
    again = record_use(store, {PRODUCER: 3.0})
    assert 3.0 < again[PRODUCER] <= 8.0
    delete_old_use(store)
    assert record_use(store, {PRODUCER: 0.0})[PRODUCER] > BURST_S, "use that is not paid for yet stays"


def test_gateways_that_share_the_same_buckets_at_once_lose_no_use(cluster):
    buckets = [Bucket("producer_byte_rate", (("user", str(number)),), rate=1.0) for number in range(60)]

    def gateway(number):
        for step in range(5):
            first = (number * 7 + step * 13) % 30
            record_use(cluster.store, dict.fromkeys(buckets[first : first + 30], 1_000.0))

    with ThreadPoolExecutor(4) as gateways:
        list(gateways.map(gateway, range(4)))
    shared = sum(record_use(cluster.store, dict.fromkeys(buckets, 0.0)).values())
    assert 4 * 5 * 30 * 1_000.0 == pytest.approx(shared, rel=0.1), "less the time since then"


def test_quotas_are_stored_as_they_were_set(cluster):
    both = entity_of([("user", 'a"\u00e9'), ("client-id", None)])
    write_quotas(cluster.store, [(both, {"producer_byte_rate": 1.0, "request_percentage": 0.25})])
    write_quotas(cluster.store, [(both, {"producer_byte_rate": 7.0, "request_percentage": None})])
    assert read_quotas(cluster.store) == {both: {"producer_byte_rate": 7.0}}
