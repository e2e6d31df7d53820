"""Protobuf messages without protoc: `Flight` and `Strict` of proto2, `shop.Order` of proto3 with all kinds of fields,
and `shop.Tree` and `shop.Nothing`, which have no representation as columns.
"""

from collections.abc import Mapping

from google.protobuf import text_format, timestamp_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from spark_log.log.columns.protobuf.messages import message_class


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
