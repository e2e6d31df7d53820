"""Appends one record, which is validated as a Producer validates it (page `/topics/{topic}/produce`)."""

import base64
from contextlib import closing
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from spark_log.cluster.topics import Topic
from spark_log.console.masks import Masks, masks_of
from spark_log.console.messages.export import encoded
from spark_log.console.messages.request import decoded
from spark_log.console.pages.messages import message_row
from spark_log.console.paths import url
from spark_log.console.routes import Allow, Call, Change, Done, View
from spark_log.errors import InvalidOptionError
from spark_log.log.append.partitioner import partition_of_key
from spark_log.log.append.rules import Rejected
from spark_log.log.log import Records
from spark_log.log.records.schema import RECORD_SCHEMA, normalise
from spark_log.maintenance.client_log import ClientLog

ENCODINGS = ("text", "json", "base64", "null")


@dataclass(frozen=True)
class Part:
    """A key, a value or the headers in the form. `encoding` is text, json, base64 or null."""

    text: str = ""
    encoding: str = "text"


@dataclass(frozen=True)
class ProducePage:
    """The form. `copied` is the message from which the form is filled in, as `partition/offset`."""

    topic: str
    partitions: int
    may_produce: bool
    key_format: str
    value_format: str
    key: Part
    value: Part
    headers: str
    partition: str
    copied: str | None


@dataclass(frozen=True)
class Produced:
    topic: str
    partition: int
    offset: int


def _page(call: Call) -> ProducePage:
    topic = call.topic(call.path["topic"])
    empty = Part(encoding="null"), Part(), "", "", None
    unmasked = call.role.messages and masks_of(frozenset(call.role.masked)) == Masks()
    copy = "partition" in call.query and "offset" in call.query and unmasked
    filled = _copied(call, topic) if copy else empty
    config = topic.config
    return ProducePage(
        topic.name, topic.partition_count, call.may(Allow.PRODUCE), config.key_format, config.value_format, *filled
    )


def _copied(call: Call, topic: Topic) -> tuple[Part, Part, str, str, str | None]:
    row = message_row(call.cluster, topic, call.query)
    headers = [(each["key"], encoded(each["value"])) for each in row["headers"] or ()]
    lines = [
        f"{name}: {text}" for name, (text, encoding) in headers if encoding == "utf-8" and "\n" not in (text or "")
    ]
    where = f"{row['partition']}/{row['offset']}"
    return _part(row["key"]), _part(row["value"]), "\n".join(lines), str(row["partition"]), where


def _part(data: bytes | None) -> Part:
    """Return the bytes as text if a browser's form keeps them unchanged, otherwise, as with NUL or CR, in base64."""
    text, encoding = encoded(data)
    if data is not None and any(byte < 32 and byte not in b"\t\n" for byte in data):
        return Part(base64.b64encode(data).decode(), "base64")
    return Part(text or "", {"utf-8": "text"}.get(encoding, encoding))


def _produce(call: Call) -> Done:
    topic = call.topic(call.path["topic"])
    key = _bytes(call, "key", "null")
    value = _bytes(call, "value", "text")
    partition = _partition(call.form.get("partition", ""), topic, key)
    columns = {"key": [key], "value": [value], "headers": [_headers(call.form.get("headers", ""))]}
    arrays = [pa.array(columns[name], RECORD_SCHEMA.field(name).type) for name in columns]
    table = normalise(pa.table(arrays, list(columns)), timestamp_ms=call.cluster.store.now().wall_ms)
    with closing(ClientLog(call.cluster, holder="console")) as log:
        [outcome] = log.append(topic, [Records(partition, table)])
    if isinstance(outcome, Rejected):
        raise outcome.error
    produced = Produced(topic.name, partition, outcome.base_offset)
    where = url(
        "/topics/{topic}/messages/{partition}/{offset}", topic=topic.name, partition=partition, offset=produced.offset
    )
    return Done(where, f"Appended to partition {partition} at offset {produced.offset}.", produced)


def _bytes(call: Call, name: str, usual: str) -> bytes | None:
    encoding = call.form.get(f"{name}_encoding") or usual
    text = call.form.get(name, "")
    match encoding:
        case "null":
            if text:
                raise InvalidOptionError(f"{name}: null has no text: choose text, json or base64")
            return None
        case "json":
            try:
                msgspec.json.decode(text)
            except (ValueError, RecursionError) as error:
                raise InvalidOptionError(f"{name}: not JSON: {error}") from None
            return text.encode()
        case "text" | "base64":
            # forms of browsers end lines with CR LF
            return decoded(name, text.replace("\r\n", "\n"), encoding)
    raise InvalidOptionError(f"{name}_encoding: {encoding!r} is none of {', '.join(ENCODINGS)}")


def _headers(text: str) -> list[dict[str, object]] | None:
    """Return the headers from lines of `name: value`."""
    headers: list[dict[str, object]] = []
    for line in text.splitlines():
        if not line.strip():
            continue
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise InvalidOptionError(f"headers: {line[:50]!r} is not `name: value`")
        headers.append({"key": name.strip(), "value": value.strip().encode()})
    return headers or None


def _partition(text: str, topic: Topic, key: bytes | None) -> int:
    """Return the named partition, or that of the key, or the first partition if there is no key."""
    if not text:
        return 0 if key is None else partition_of_key(key, topic.partition_count)
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) < topic.partition_count):
        raise InvalidOptionError(f"partition: {text!r} is not a number from 0 to {topic.partition_count - 1}")
    return int(text)


VIEWS = (View("/topics/{topic}/produce", "produce.html", _page),)
CHANGES = (Change("/topics/{topic}/produce", Allow.PRODUCE, _produce, hidden=frozenset({"key", "value", "headers"})),)
