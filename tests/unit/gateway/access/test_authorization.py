"""Where rights are checked, and in which order."""

import asyncio
from types import SimpleNamespace

from kafka.protocol.producer.produce import ProduceRequest

from spark_log.cluster.security.acl_rules import Rights
from spark_log.gateway.access.access import Access
from spark_log.gateway.access.authorization import authorized
from spark_log.gateway.api import Api, Client
from spark_log.gateway.records.produce_requests import APIS

KIND = ProduceRequest.TopicProduceData


def request_of(*topics):
    partition = KIND.PartitionProduceData(index=0, records=b"")
    request = ProduceRequest(
        transactional_id=None, acks=1, timeout_ms=1,
        topic_data=[KIND(name=name, partition_data=[partition]) for name in topics],
    )  # fmt: skip
    request.API_VERSION = 8
    return request


async def test_rights_of_large_produce_requests_are_checked_in_threads_and_their_order_is_kept():
    """The check of 20,000 topics takes a third of a second, in which the event loop would serve no other client."""
    handled, threads = [], []

    async def compute(function, *arguments):
        threads.append(function.__name__)
        if len(threads) % 2:  # every other one takes longer than what comes after it
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        return function(*arguments)

    async def handler(services, request, client):
        async with client.order:
            await services.compute(request_of)
            handled.append([topic.name for topic in request.topic_data])

    api = Api(APIS[0].request, handler, advertised=(0, 11), rights=APIS[0].rights, pipelined=True)
    everybody = Rights((), allow_everyone_if_no_acl_found=True)
    client = Client("", "127.0.0.1", access=Access(everybody, "User:me", "127.0.0.1"))
    services = SimpleNamespace(compute=compute)
    requests = [request_of(*[f"t{number}"] * (1 + 9 * (number % 3))) for number in range(9)]
    await asyncio.gather(*(authorized(api, services, each, client) for each in requests))
    assert handled == [[topic.name for topic in each.topic_data] for each in requests]
    assert threads.count("_take_refused") == threads.count("_refused_whole") == len(requests)
