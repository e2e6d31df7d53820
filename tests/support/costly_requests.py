"""Requests of the shape that Kafka's schemas allow, which ask for as much as they can: python -m with port and seed.

The process sends each on a connection of its own address, several at a time, and prints "sending" before the first.
"""

import io
import queue
import random
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
from kafka.protocol.consumer import FetchRequest
from kafka.protocol.producer.produce import ProduceRequest

from spark_log.gateway.api import Api
from spark_log.gateway.server import APIS
from spark_log.log.records.kafka_batch.encode import encode
from spark_log.log.records.kafka_batch.header import HEADER_BYTES
from tests.support.gateway_wire import frame_of, request_about
from tests.support.kafka_batches import stored, with_checksum

HOSTILE_ADDRESS = "127.0.0.2"
_CONNECTIONS = 6
_BYTES = 1024 * 1024 - 4096
_ANSWER_S = 20.0
_HEADER_BYTES = 14
"""Length, API key, version, correlation id and an empty client id."""
_LENGTHS = [b"\x80", b"\xff", b"\x7f", b"\x00\x00\x00\x01", b"\x7f\xff\xff\xff", b"\x02"]


def framed(api: Api, version: int, body: bytes) -> bytes:
    flexible = b"\0" if api.request.flexible_version_q(version) else b""
    header = struct.pack(">hhih", api.key, version, 1, 0) + flexible
    return struct.pack(">i", len(header) + len(body)) + header + body


def costly_frames(api: Api, version: int, chosen: random.Random) -> Iterator[bytes]:
    """Arrays of as many elements as fit, the same and others; bytes that are lengths and counts without end."""
    limit = min(api.limits.bytes_max or _BYTES, _BYTES)
    for distinct in (False, True):
        request = request_about("flights", api.request, version)
        small = len(frame_of(request, version))
        for holder, name in _arrays(request):
            [element] = getattr(holder, name)
            setattr(holder, name, [element, element])
            size = max(1, len(frame_of(request, version)) - small)
            count = max(1, min(limit // (size + 6 * distinct), api.limits.elements_max - 10))
            others = [_other(element, number) for number in range(count)] if distinct else [element] * count
            setattr(holder, name, others)
            with suppress(struct.error):  # numbers that do not fit into their field
                yield frame_of(request, version)
            setattr(holder, name, [element])
    yield framed(api, version, chosen.choice(_LENGTHS) * (limit // 4))
    body = frame_of(request_about("flights", api.request, version), version)[_HEADER_BYTES:]
    cut = chosen.randrange(len(body) + 1)
    yield framed(api, version, (body[:cut] + chosen.choice(_LENGTHS) * limit)[: limit - 64])


def _arrays(holder: Any) -> Iterator[tuple[Any, str]]:
    for name in type(holder)._struct.fields:
        value = getattr(holder, name, None)
        if isinstance(value, list) and value:
            yield holder, name
            if hasattr(value[0], "_struct"):
                yield from _arrays(value[0])


def _other(element: Any, number: int) -> Any:
    """A like element with another text or number."""
    if isinstance(element, str):
        return f"{element}{number}"
    if isinstance(element, int):
        return number
    if not hasattr(element, "_struct"):
        return element
    values = {name: getattr(element, name, None) for name in type(element)._struct.fields}
    text = next((name for name, value in values.items() if isinstance(value, str)), None)
    if text is not None:
        values[text] = f"{values[text]}{number}"
    return type(element)(**values)


def batch_of(body: bytes, count: int, compression: int) -> bytes:
    """A record batch with these bytes as its records, and a right checksum."""
    one = encode(stored([(1_700_000_000_000, b"k", b"v", [])]), base_offset=0, last_offset=0, leader_epoch=0)
    header = bytearray(one[:HEADER_BYTES])
    struct.pack_into(">i", header, 8, HEADER_BYTES - 12 + len(body))
    struct.pack_into(">h", header, 21, compression)
    struct.pack_into(">i", header, 23, count - 1)
    struct.pack_into(">i", header, 57, count)
    return with_checksum(header + body)


def produce_of(topic: str, batches: list[bytes]) -> bytes:
    kind = ProduceRequest.TopicProduceData
    data = [kind.PartitionProduceData(index=0, records=batch) for batch in batches]
    return frame_of(
        ProduceRequest(
            transactional_id=None, acks=-1, timeout_ms=1_000, topic_data=[kind(name=topic, partition_data=data)]
        ),
        8,
    )


def costly_records() -> Iterator[bytes]:
    """Batches that become large, that are too large, with lengths that lie, for topics that exist and do not."""
    zeros = bytes(32 * 1024 * 1024)
    bombs = []
    for number, codec in ((1, "gzip"), (3, "lz4"), (4, "zstd")):
        packed = io.BytesIO()
        with pa.CompressedOutputStream(packed, codec) as stream:
            stream.write(zeros)
            stream.flush()
            bombs.append(batch_of(packed.getvalue(), 1, number))
    for topic in ("flights", "unknown"):
        yield produce_of(topic, bombs * 20)
        yield produce_of(topic, [bombs[2]] * 50)
        yield produce_of(topic, [batch_of(b"\x0c\0\0\0\1\1\0" * 1_200_000, 1_200_000, 0)] * 3)
        record = b"\0\0" + b"%c" + b"\1\1\2\xff\xff\xff\xff\x0f\0"
        records = b"".join(bytes([2 * len(record) - 2]) + record.replace(b"%c", bytes([2 * n])) for n in range(60))
        yield produce_of(topic, [batch_of(records, 60, 0)] * 20)
        yield produce_of(topic, [b""] * 19_000)


def costly_fetches() -> Iterator[bytes]:
    kind = FetchRequest.FetchTopic
    partition = kind.FetchPartition(
        partition=0, current_leader_epoch=-1, fetch_offset=0, last_fetched_epoch=-1, log_start_offset=-1,
        partition_max_bytes=2**31 - 1,
    )  # fmt: skip
    together, alone = kind(topic="large", partitions=[partition] * 40), kind(topic="large", partitions=[partition])
    for topics in ([together], [alone] * 40):
        request = FetchRequest(
            replica_id=-1, max_wait_ms=300_000, min_bytes=1, max_bytes=2**31 - 1, isolation_level=0, session_id=0,
            session_epoch=-1, topics=topics, forgotten_topics_data=[], rack_id="",
        )  # fmt: skip
        yield frame_of(request, 11)


def all_frames(seed: int, share: float) -> list[bytes]:
    """In random order; `share`: of those that are made by the schemas."""
    chosen = random.Random(seed)
    frames = [*costly_records(), *list(costly_fetches()) * 3]
    for api in APIS:
        for version in {api.served_from or api.advertised[0], api.advertised[1]}:
            if chosen.random() < share:
                frames += costly_frames(api, version, chosen)
    chosen.shuffle(frames)
    return frames


def send_all(port: int, frames: list[bytes]) -> None:
    """Each on a connection of its own, of which the client reads one answer at most."""
    left: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    for frame in frames:
        left.put(frame)

    def send_some() -> None:
        while True:
            try:
                frame = left.get_nowait()
            except queue.Empty:
                return
            with suppress(OSError), socket.socket() as connection:
                connection.settimeout(_ANSWER_S)
                connection.bind((HOSTILE_ADDRESS, 0))
                connection.connect(("127.0.0.1", port))
                connection.sendall(frame)
                connection.recv(4)

    threads = [threading.Thread(target=send_some) for _ in range(_CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    port, seed, share = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    frames = all_frames(seed, share)
    print("sending", len(frames), sum(map(len, frames)) // 1_000_000, "MB", flush=True)
    began_s = time.monotonic()
    send_all(port, frames)
    print("sent", round(time.monotonic() - began_s, 1), "s", flush=True)
