"""A day of aiokafka: what it sees, one line for each step. Usage: python aiokafka_client.py HOST:PORT."""

import asyncio
import json
import logging
import os
import sys
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition  # type: ignore[import-not-found]
from aiokafka.admin import AIOKafkaAdminClient, NewTopic  # type: ignore[import-not-found]
from aiokafka.errors import KafkaError  # type: ignore[import-not-found]

PARTITIONS, RECORDS, WAIT_S = 4, 200, 60.0
TOPIC, GROUP = f"aiokafka-{os.getpid()}", f"group-{os.getpid()}"


def say(step: str, seen: Any) -> None:
    print(f"{step}: {json.dumps(seen)}", flush=True)


async def main(servers: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=servers)
    await admin.start()
    for step in ("create a topic", "create it again"):
        created = await admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])
        say(step, [error[1] for error in created.topic_errors])
    await produce(servers)
    await consume(servers)
    described = await admin.describe_consumer_groups([GROUP])
    say("describe the group", described[0].groups[0][2:4])
    offsets = await admin.list_consumer_group_offsets(GROUP)
    say("committed", sorted((there.partition, found.offset) for there, found in offsets.items()))
    await admin.delete_topics([TOPIC])
    say("delete the topic", TOPIC in await admin.list_topics())
    await admin.close()


async def produce(servers: str) -> None:
    kinds: list[dict[str, Any]] = [
        {"acks": 0}, {"acks": 1}, {"acks": "all"}, {"enable_idempotence": True},
        *({"compression_type": codec} for codec in ("gzip", "snappy", "lz4", "zstd")),
    ]  # fmt: skip
    for kind in kinds:
        async with AIOKafkaProducer(bootstrap_servers=servers, **kind) as producer:
            for number in range(RECORDS):
                await producer.send(
                    TOPIC, b"v%d" % number, b"k", number % PARTITIONS, headers=[("a", b"%d" % number), ("b", b"")]
                )
            await producer.flush()
            last = await producer.send_and_wait(TOPIC, b"last", partition=0)  # None without acknowledgements
        [(name, value)] = kind.items()
        say(f"produce, {name}={value}", last and [last.partition, last.offset])
    async with AIOKafkaProducer(bootstrap_servers=servers) as producer:
        try:
            await producer.send_and_wait(TOPIC, b"v" * 1_000_000, partition=1)
            await producer.send_and_wait(TOPIC, b"v" * 2_000_000, partition=1)
        except KafkaError as error:
            say("a large record", type(error).__name__)


async def consume(servers: str) -> None:
    def member() -> AIOKafkaConsumer:
        return AIOKafkaConsumer(
            TOPIC, bootstrap_servers=servers, group_id=GROUP, auto_offset_reset="earliest", enable_auto_commit=False,
            session_timeout_ms=6_000, heartbeat_interval_ms=200, rebalance_timeout_ms=6_000,
        )  # fmt: skip

    first, second = member(), member()
    await first.start()
    ends = await first.end_offsets([TopicPartition(TOPIC, number) for number in range(PARTITIONS)])
    say("end offsets", sorted((there.partition, end) for there, end in ends.items()))
    seen: set[Any] = set()
    while len(seen) < sum(ends.values()):
        for there, records in (await first.getmany(timeout_ms=500)).items():
            seen |= {(there.partition, record.offset, record.value[:10], record.headers) for record in records}
    say("group of one, records", [len(seen), str(min(seen))])
    await first.commit()
    await second.start()
    await until(lambda: len(first.assignment()) == len(second.assignment()) == PARTITIONS // 2, first, second)
    say("group of two, partitions", [len(first.assignment()), len(second.assignment())])
    await first.stop()
    await until(lambda: len(second.assignment()) == PARTITIONS, second)
    there = TopicPartition(TOPIC, 1)
    say("the second goes on from", [await second.position(there), await second.committed(there)])
    second.seek(there, 5)
    [record] = (await second.getmany(there, timeout_ms=30_000, max_records=1))[there]
    say("after a seek", [record.offset, record.value.decode(), record.headers[0][1].decode()])
    found = await second.offsets_for_times({there: record.timestamp - 1, TopicPartition(TOPIC, 2): 4_000_000_000_000})
    say("offsets by time", [found[there] is not None, found[TopicPartition(TOPIC, 2)]])
    await second.commit({there: (7, "notes")})
    await second.stop()


async def until(holds: Any, *consumers: AIOKafkaConsumer) -> None:
    async with asyncio.timeout(WAIT_S):
        while not holds():
            for consumer in consumers:
                await consumer.getmany(timeout_ms=50)


logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # its notes on rebalancing differ from run to run
asyncio.run(main(sys.argv[1]))
