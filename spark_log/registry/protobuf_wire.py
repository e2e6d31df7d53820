"""Compares the wire format of Protobuf messages, in which fields have numbers and no names, by the rules of Confluent's
Schema Registry.
"""

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from spark_log.log.columns.protobuf.messages import is_map, type_name

_GROUPS = (
    ("int32", "int64", "uint32", "uint64", "bool", "enum"),
    ("sint32", "sint64"),
    ("fixed32", "sfixed32"),
    ("fixed64", "sfixed64"),
    ("string", "bytes"),
)
"""Groups of field types that share an encoding. Every other type has an encoding of its own."""
_ENCODINGS = {name: group[0] for group in _GROUPS for name in group}
_WITH_LENGTH = ("string", "message", "group")
"""Encodings in which the elements of a repeated field are single fields. Numbers are packed into one field."""
_FIELDS_MAX = 1_000_000
"""The maximum number of fields to compare."""
_PROBLEMS_MAX = 100
"""The number of reasons after which no further messages are compared."""


class WireComparison:
    """Compares messages, and the messages that their fields have, each pair of messages once."""

    def __init__(self) -> None:
        self._seen: set[tuple[Descriptor, Descriptor]] = set()
        self._fields = 0

    def problems(self, reader: Descriptor, writer: Descriptor) -> list[str]:
        """Return the reasons why a parser of `reader` does not understand the bytes of `writer`, or the reverse.

        Fields with the same number must have the same encoding, and messages with the same name. A field may be
        renamed; a name that both have must keep its number.
        """
        reasons: list[str] = []
        waiting = self._new(reader, writer)
        while waiting and len(reasons) < _PROBLEMS_MAX:
            read, written = waiting.pop()
            self._fields += 1 + len(written.fields)
            if self._fields > _FIELDS_MAX:
                return [f"the schemas have more than {_FIELDS_MAX:,} fields, and cannot be compared"]
            for field in written.fields:
                named = read.fields_by_name.get(field.name)
                if named is not None and named.number != field.number:
                    reasons.append(f"{field.full_name}: the number is {named.number}, not {field.number}")
                numbered = read.fields_by_number.get(field.number)
                if numbered is None:
                    continue
                if _described(numbered, encoded=True) != _described(field, encoded=True):
                    kinds = f"{_described(numbered)}, not {_described(field)}"
                    reasons.append(f"{field.full_name}: the type of field {field.number} is {kinds}")
                elif field.message_type:
                    waiting += self._new(numbered.message_type, field.message_type)
        return reasons

    def _new(self, reader: Descriptor, writer: Descriptor) -> list[tuple[Descriptor, Descriptor]]:
        pair = (reader, writer)
        if pair in self._seen:
            return []
        self._seen.add(pair)
        return [pair]


def _described(field: FieldDescriptor, *, encoded: bool = False) -> str:
    """Return the label and the type of the field. With `encoded`, fields of one encoding have the same text."""
    if is_map(field):
        return "map"
    kind = type_name(field)
    encoding = _ENCODINGS.get(kind, kind)
    label = "repeated " if field.is_repeated and not (encoded and encoding in _WITH_LENGTH) else ""
    if field.message_type:
        package = field.message_type.file.package
        return f"{label}{kind} {field.message_type.full_name.removeprefix(f'{package}.')}"
    return label + (encoding if encoded else kind)
