"""Estimates the size of a parsed message. The parser allocates all fields of each nested message, so an empty message
of two bytes may take tens of thousands of bytes, and a value may contain it many times.
"""

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from spark_log.log.columns.protobuf.messages import is_map


def widest_repeated(kind: Descriptor) -> int:
    """Return the largest number of fields of a message that one of `kind` may contain many times, at any depth."""
    most, seen, stack = 0, {kind.full_name}, [kind]
    while stack:
        for field in stack.pop().fields:
            if (part := field.message_type) is None:
                continue
            most = max(most, _fields_of_item(field))
            if part.full_name not in seen:
                seen.add(part.full_name)
                stack.append(part)
    return most


def repeated_fields(value: bytes, kind: Descriptor) -> int:
    """Return the number of fields, including missing ones, of all nested messages that a message may contain many
    times. Bytes that cannot be parsed are not counted.
    """
    count, stack = 0, [(0, len(value), kind)]
    while stack:
        pos, end, outer = stack.pop()
        kinds: list[Descriptor | None] = [outer]  # with the groups around the field
        while pos < end and kinds:
            try:
                key, pos = _varint(value, pos)
                wire_type, current = key & 7, kinds[-1]
                field = None if current is None else current.fields_by_number.get(key >> 3)
                part = None if field is None else field.message_type
                if wire_type in (2, 3) and field is not None and part is not None:
                    count += _fields_of_item(field)
                if wire_type == 0:
                    pos = _varint(value, pos)[1]
                elif wire_type == 2:
                    length, pos = _varint(value, pos)
                    if part is not None:
                        stack.append((pos, min(pos + length, end), part))
                    pos += length
                elif wire_type == 3:
                    kinds.append(part)
                elif wire_type == 4:
                    kinds.pop()
                else:
                    pos += {1: 8, 5: 4}[wire_type]
            except (IndexError, KeyError):
                break
    return count


def _fields_of_item(field: FieldDescriptor) -> int:
    """Return the number of fields of a message that may be allocated many times, 0 for one that is allocated once. A
    message of a oneof is allocated again after another field of the oneof.
    """
    in_oneof = field.containing_oneof is not None and len(field.containing_oneof.fields) > 1
    if not (field.is_repeated or in_oneof):
        return 0
    own = len(field.message_type.fields)
    value = field.message_type.fields_by_name["value"].message_type if is_map(field) else None
    return own if value is None else own + len(value.fields)


def _varint(value: bytes, pos: int) -> tuple[int, int]:
    byte = value[pos]
    number, shift = byte & 127, 7
    while byte & 128:
        if shift > 63:
            raise IndexError
        pos += 1
        byte = value[pos]
        number |= (byte & 127) << shift
        shift += 7
    return number, pos + 1
