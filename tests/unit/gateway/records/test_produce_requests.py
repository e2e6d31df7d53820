"""Produce requests with many batches."""

import asyncio
from types import SimpleNamespace

from kafka.protocol.producer.produce import ProduceRequest

from spark_log.errors import InvalidRecordError
from spark_log.gateway.api import Client
from spark_log.gateway.limits.bulkheads import RequestContext, request_context
from spark_log.gateway.records.batch_checks import Outcome
from spark_log.gateway.records.produce_requests import _response, produce

KIND = ProduceRequest.TopicProduceData


def request_of(partitions):
    data = [KIND.PartitionProduceData(index=number, records=b"") for number in range(partitions)]
    return ProduceRequest(
        transactional_id=None, acks=1, timeout_ms=1, topic_data=[KIND(name="flights", partition_data=data)]
    )


async def test_many_batches_of_a_request_are_appended_in_parts_so_that_others_come_in_between():
    submitted = []

    def submit(_client, _connection, batches, _acks, _transactional_id):
        submitted.append([each.partition for each in batches])
        done = asyncio.get_running_loop().create_future()
        done.set_result([Outcome(base_offset=each.partition) for each in batches])
        return done

    async def run(_lane, _client, function, **_):
        return function()

    def check(batches, _limits):
        return batches

    async def compute(function, *arguments):
        return function(*arguments)

    async def more(_size):
        pass

    services = SimpleNamespace(
        appender=SimpleNamespace(submit=submit, check=check), bulkheads=SimpleNamespace(run=run),
        settings=SimpleNamespace(decompressed_bytes_max=1, records_max=1), compute=compute,
    )  # fmt: skip
    memory = SimpleNamespace(records=SimpleNamespace(bytes=0, more=more, set=lambda _: None))
    request_context.set(RequestContext(memory=memory))
    response = await produce(services, request_of(1_200), Client("", "127.0.0.1"))
    assert list(map(len, submitted)) == [500, 500, 200]
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
