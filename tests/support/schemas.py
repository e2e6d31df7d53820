"""Schemas: typed topics, Protobuf messages without protoc, and requests to a schema registry.

The oracle of the columns of typed topics is Python's json module. The messages are `Flight` and `Strict` of proto2,
`shop.Order` of proto3 with all kinds of fields, and `shop.Tree` and `shop.Nothing`, which have no representation as
columns.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pyarrow as pa
import pyarrow.parquet as pq
import sqlalchemy as sa
from google.protobuf import text_format, timestamp_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.log_dir import LogDir, segment_path
from spark_log.cluster.topics import Topic
from spark_log.log.columns.key_and_value import PARTS
from spark_log.log.columns.protobuf.messages import message_class
from spark_log.log.records.schema import SEGMENT_SCHEMA, read_schema
from spark_log.maintenance.client_log import ClientLog
from spark_log.metadata.sql_columns import SEGMENT
from tests.support.records import ranges_of
from tests.support.stores import topics_view
from tests.support.topics import make

SCHEMA = "item STRING, price DOUBLE, n BIGINT"
WIDER = "note STRING, item STRING, price DOUBLE, n BIGINT"
SHORT = ("item", "price", "n")
KEYS = {"key_format": "json", "key_schema": "n BIGINT, item STRING"}
"""Configs of a topic whose keys are typed too."""
TYPES: dict[str, Any] = {"item": str, "price": float, "n": int, "note": str}


def typed(cluster: Cluster, name: str = "orders", **configs: str) -> Topic:
    """A topic of JSON values with the fields of SCHEMA."""
    return make(cluster, name, 1, **{"value_format": "json", "value_schema": SCHEMA, "retention_ms": "-1", **configs})


def oracle(value: bytes | None, names: Sequence[str]) -> dict[str, Any] | None:
    """The record of a value: the fields of a JSON object, None for any other value."""
    if value is None:
        return None
    try:
        found = json.loads(value, parse_constant=lambda _: 1 / 0)
    except (ValueError, ZeroDivisionError):
        return None
    if not isinstance(found, dict):
        return None
    record: dict[str, Any] = {name: found.get(name) for name in names}
    for name, field in record.items():
        wanted = (float, int) if TYPES[name] is float else TYPES[name]
        if field is not None and (not isinstance(field, wanted) or isinstance(field, bool)):
            return None
        if TYPES[name] is int and field is not None and not -(2**63) <= field < 2**63:
            return None
    return {
        name: float(field) if TYPES[name] is float and field is not None else field for name, field in record.items()
    }


def files(cluster: Cluster, topic: Topic) -> list[tuple[int | None, pa.Table]]:
    """(columns version, Arrow table) of each segment file of the topic, from the first log dir."""
    info = next(iter(cluster.log_dirs().values()))
    query = sa.select(SEGMENT.partition, SEGMENT.name, SEGMENT.columns_version).where(
        SEGMENT.topic_id == topic.topic_id, ~SEGMENT.inline
    )
    rows = topics_view(cluster).store.read(
        lambda connection: connection.execute(query.order_by(SEGMENT.base_offset)).all()
    )
    log_dir = LogDir(info.uri)
    return [
        (row.columns_version, pq.read_table(log_dir.open(segment_path(topic.folder, row.partition, row.name))))
        for row in rows
    ]


def check_records(rows: pa.Table) -> None:
    """The typed columns of the rows are their decoded keys and values."""
    for part in PARTS:
        if part.record in rows.schema.names:
            names = [field.name for field in rows.schema.field(part.record).type]
            columns = rows.select([part.source, part.error, part.record]).to_pydict().values()
            for given, error, record in zip(*columns, strict=True):
                expected = oracle(given, names)
                assert record == expected
                assert (error is not None) == (given is not None and expected is None)


def check_columns(cluster: Cluster, log: ClientLog, name: str = "orders") -> dict[int, bytes | None]:
    """The columns in files, and those that a reader gets, are the decoded keys and values. Returns the value of each
    offset.
    """
    topic = log.find_topic(name)
    assert topic.columns is not None
    fields = topic.columns.fields
    schema = read_schema(columns=["key", "value", "offset", *fields.names], typed=fields)
    read = pa.Table.from_batches(log.read(ranges_of(log, topic), schema), schema)
    check_records(read)
    for version, rows in files(cluster, topic):
        assert (len(rows.schema) > len(SEGMENT_SCHEMA)) == (version is not None)
        assert version != topic.columns.version or list(rows.schema)[len(SEGMENT_SCHEMA) :] == list(fields)
        check_records(rows)
    return dict(zip(read.column("offset").to_pylist(), read.column("value").to_pylist(), strict=True))


def document(number: int, **more: object) -> str:
    return json.dumps({"item": f"i{number}", "price": number / 2, "n": number, **more})


def _message(name: str, *fields: str, more: str = "") -> str:
    """A message whose fields are given as "3 REPEATED ENUM .State states": number, label, type, name."""
    parts = []
    for field in fields:
        number, label, kind, *of, own = field.split()
        type_name = f'type_name: "{of[0]}"' if of else ""
        optional = label == "PRESENT"
        parts.append(
            f'field {{ name: "{own}" number: {number} label: LABEL_{"OPTIONAL" if optional else label}'
            f" type: TYPE_{kind} {type_name} {'proto3_optional: true oneof_index: 0' if optional else ''} }}"
        )
    return f'name: "{name}" {" ".join(parts)} {more}'


def _entry(name: str, key: str, value: str) -> str:
    fields = _message(name, f"1 OPTIONAL {key} key", f"2 OPTIONAL {value} value")
    return f"nested_type {{ {fields} options {{ map_entry: true }} }}"


_STATES = 'name: "State" value { name: "NEW" number: 0 } value { name: "PAID" number: 1 }'
_FLIGHT = (
    f"""name: "flight.proto" syntax: "proto2" enum_type {{ {_STATES} }}
    message_type {{ {_message("Flight", "1 OPTIONAL STRING carrier", "2 OPTIONAL INT32 delay")} }}
    message_type {{ """
    + _message(
        "Strict",
        "1 REQUIRED INT32 id",
        "2 OPTIONAL ENUM .State state",
        "3 REPEATED MESSAGE .Flight flights",
        "4 REPEATED MESSAGE .Strict.StatesEntry states",
        more=_entry("StatesEntry", "STRING", "ENUM .State"),
    )
    + " }"
)
_TIME = "MESSAGE .google.protobuf.Timestamp"
_LINE = _message("Line", "1 OPTIONAL STRING name", "2 OPTIONAL INT32 amount", f"3 OPTIONAL {_TIME} at")
_ORDER = _message(
    "Order",
    "1 OPTIONAL STRING id",
    "2 OPTIONAL SINT32 count",
    "3 PRESENT STRING note",
    "4 OPTIONAL MESSAGE .shop.Order.Line line",
    "5 REPEATED MESSAGE .shop.Order.Line lines",
    "6 REPEATED STRING tags",
    "7 REPEATED MESSAGE .shop.Order.PricesEntry prices",
    "8 REPEATED MESSAGE .shop.Order.PartsEntry parts",
    "9 REPEATED MESSAGE .shop.Order.SeenEntry seen",
    "10 OPTIONAL ENUM .shop.State state",
    "11 REPEATED ENUM .shop.State states",
    f"12 OPTIONAL {_TIME} at",
    "13 OPTIONAL UINT64 serial",
    "14 OPTIONAL FIXED32 crc",
    "15 OPTIONAL BYTES data",
    "16 OPTIONAL BOOL ok",
    "17 OPTIONAL SFIXED64 total",
    "18 REPEATED FLOAT rates",
    "19 REPEATED MESSAGE .shop.Order.KindsEntry kinds",
    more=f"""nested_type {{ {_LINE} }} {_entry("PricesEntry", "STRING", "DOUBLE")}
    {_entry("PartsEntry", "INT32", "MESSAGE .shop.Order.Line")} {_entry("SeenEntry", "STRING", _TIME)}
    {_entry("KindsEntry", "BOOL", "ENUM .shop.State")}
    oneof_decl {{ name: "_note" }}""",
)
_SHOP = f"""name: "shop.proto" package: "shop" syntax: "proto3" dependency: "google/protobuf/timestamp.proto"
    enum_type {{ {_STATES} }}
    message_type {{ {_message("Nothing")} }}
    message_type {{ {_ORDER} }}
    message_type {{ {
    _message(
        "Tree",
        "1 REPEATED MESSAGE .shop.Tree.Branch branches",
        more="nested_type { " + _message("Branch", "1 OPTIONAL MESSAGE .shop.Tree tree") + " }",
    )
} }}
    message_type {{ {_message("Holder", "1 OPTIONAL MESSAGE .shop.Nothing nothing")} }}"""


def _set(*files: FileDescriptorProto) -> bytes:
    return bytes(FileDescriptorSet(file=files).SerializeToString())


def _time() -> FileDescriptorProto:
    file = FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(file)
    return file


FLIGHT_DESCRIPTOR_SET = _set(text_format.Parse(_FLIGHT, FileDescriptorProto()))
SHOP_DESCRIPTOR_SET = _set(_time(), text_format.Parse(_SHOP, FileDescriptorProto()))
SHOP_ALONE_DESCRIPTOR_SET = _set(text_format.Parse(_SHOP, FileDescriptorProto()))
"""A descriptor set as protoc writes it without --include_imports."""

Order = message_class("shop.Order", SHOP_DESCRIPTOR_SET)


def flight_bytes(carrier: str, delay: int) -> bytes:
    made = message_class("Flight", FLIGHT_DESCRIPTOR_SET)(carrier=carrier, delay=delay)
    return bytes(made.SerializeToString())


def descriptor_set(message: str, fields: Mapping[str, str]) -> bytes:
    """A descriptor set of one proto3 message with these fields, numbered from 1: name to type, such as TYPE_STRING."""
    file = FileDescriptorProto(name=f"{message.lower()}.proto", syntax="proto3")
    declared = file.message_type.add(name=message)
    for number, (name, kind) in enumerate(fields.items(), 1):
        declared.field.add(name=name, number=number, type=kind, label="LABEL_OPTIONAL")
    return _set(file)


CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"


def request(method: str, url: str, body: Any = None) -> tuple[int, Any]:
    """Status and answer of a request."""
    data = None if body is None else json.dumps(body).encode()
    wanted = Request(url, data, {"Content-Type": CONTENT_TYPE, "Accept": CONTENT_TYPE}, method=method)
    try:
        with urlopen(wanted, timeout=30) as response:
            assert response.headers["Content-Type"].startswith(CONTENT_TYPE)
            text = response.read().decode()
            return response.status, text if method == "GET" and url.endswith("/schema") else json.loads(text)
    except HTTPError as error:
        assert error.headers["Content-Type"].startswith(CONTENT_TYPE)
        return error.code, json.loads(error.read())


def avro(*fields: tuple[object, ...], name: str = "Order") -> str:
    """A record with fields given as (name, type) or (name, type, default)."""
    found = [dict(zip(("name", "type", "default"), field, strict=False)) for field in fields]
    return json.dumps({"type": "record", "name": name, "fields": found})


PROTO = """syntax = "proto3"; package shop; import "google/protobuf/timestamp.proto";
message Order { string item = 1; google.protobuf.Timestamp at = 2; }"""
ITEM, COUNT = ("item", "string"), ("count", ["null", "long"], None)
COUNT_TOO = ("count_too", ["null", "long"], None)
ONE, TWO, BREAKING = avro(ITEM), avro(ITEM, COUNT), avro(ITEM, ("price", "double"))
