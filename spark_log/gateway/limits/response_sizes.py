"""Estimates the memory that responses take."""

from spark_log.gateway.protocol.wire import Message

ELEMENT_BYTES = 240
"""Memory of a struct of a response with a few numbers: its object, and its encoded bytes."""
PARTITION_BYTES, TOPIC_BYTES = 600, 500
"""Memory of the description of a partition and of a topic, including the rows that are read for it."""
_VALUE_BYTES = 40
"""Memory of a string or an array element in addition to its bytes, which exist twice while the response is encoded."""


def size_of(element: Message) -> int:
    """Return the bytes of a struct of a response, including the structs in it."""
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
