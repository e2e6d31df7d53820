"""Estimates of the memory that responses take."""

from spark_log.gateway.protocol.wire import Message

ELEMENT_BYTES = 240
"""Of a struct of a response with a few numbers: its object, and its encoded bytes."""
PARTITION_BYTES, TOPIC_BYTES = 600, 500
"""Of descriptions of topics, with what is read for them."""
_VALUE_BYTES = 40
"""Of a string or an element of an array besides its bytes, which exist twice while the response is encoded."""


def size_of(element: Message) -> int:
    """Bytes of a struct of a response, with the structs in it."""
    size, left = 0, [element]
    while left:
        one = left.pop()
        if isinstance(one, str | bytes):
            size += _VALUE_BYTES + 2 * len(one)
        elif isinstance(one, list):
            if one and isinstance(one[0], int):
                size += _VALUE_BYTES * len(one)
            else:
                left += one
        elif hasattr(one, "_struct"):
            size += ELEMENT_BYTES
            left += (getattr(one, name) for name in type(one)._struct.fields)
    return size
