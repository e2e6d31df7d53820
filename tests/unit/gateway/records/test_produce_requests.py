"""Produce requests with many batches."""

import asyncio
from types import SimpleNamespace

from kafka.protocol.producer.produce import ProduceRequest

from spark_log.errors import InvalidRecordError
from spark_log.gateway.api import Client
from spark_log.gateway.limits.bulkheads import RequestContext, request_context
from spark_log.gateway.records.batch_checks import Outcome, SentBatch
from spark_log.gateway.records.produce_requests import _checked, _response, produce

KIND = ProduceRequest.TopicProduceData


def request_of(partitions):
    data = [KIND.PartitionProduceData(index=number, records=b"") for number in range(partitions)]
    return ProduceRequest(
        transactional_id=None, acks=1, timeout_ms=1, topic_data=[KIND(name="flights", partition_data=data)]
    )


def services_of(**appender):
    """The parts of a gateway with this appender; threads and memory are without limits."""

    async def run(_lane, _client, function, **_):
        return function()

    async def compute(function, *arguments):
        return function(*arguments)

    return SimpleNamespace(
        appender=SimpleNamespace(**appender), bulkheads=SimpleNamespace(run=run), compute=compute,
        settings=SimpleNamespace(decompressed_bytes_max=1, records_max=1),
    )  # fmt: skip


def memory_of_request():
    """The sizes that the request holds for its records, one after the other."""
    sizes = []

    async def more(_size):
        pass

    records = SimpleNamespace(bytes=0, more=more, set=sizes.append)
    request_context.set(RequestContext(memory=SimpleNamespace(records=records)))
    return sizes


async def test_refused_records_are_counted_as_memory_until_the_response_names_the_invalid_ones():
    sizes = memory_of_request()
    refused = Outcome(InvalidRecordError("no key"), bytes=1_000)
    services = services_of(check=lambda batches, _limits: [refused] * len(batches))
    assert await _checked(services, [SentBatch("flights", 0, b"")] * 101, Client("", "127.0.0.1")) == [refused] * 101
    assert sizes == [101_000]


async def test_many_batches_of_a_request_are_appended_in_parts_so_that_others_come_in_between():
    submitted = []

    def submit(_client, _connection, batches, _acks, _transactional_id):
        submitted.append(len(batches))
        done = asyncio.get_running_loop().create_future()
        done.set_result(batches)
        return done

    def check(batches, _limits):
        return [Outcome(base_offset=each.partition) for each in batches]

    memory_of_request()
    services = services_of(submit=submit, check=check)
    response = await produce(services, request_of(1_200), Client("", "127.0.0.1"))
    assert submitted == [500, 500, 200]
    assert [each.base_offset for each in response.responses[0].partition_responses] == list(range(1_200))


def test_a_response_names_a_thousand_invalid_records_in_all():
    asked = []

    def first_rows(count_max):
        asked.append(count_max)
        return dict.fromkeys(range(min(600, count_max)), "no key")

    outcomes = [Outcome(InvalidRecordError("no key"), bad_records=first_rows)] * 3
    [topic] = _response(request_of(3), outcomes, 0, -1).responses
    assert [len(each.record_errors) for each in topic.partition_responses] == [600, 400, 0]
    assert asked == [1_000, 400]
