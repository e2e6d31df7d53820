"""Checks the arguments of `send` whose validity does not depend on the topic."""

from typing import Any

from kafka.record.default_records import DefaultRecordBatchBuilder

from spark_log.clients.kafka_errors import kafka_error
from spark_log.clients.produce.producer_batch import Headers
from spark_log.cluster.topics import Topic
from spark_log.errors import InvalidRecordError, InvalidTimestampError, MessageSizeTooLargeError
from spark_log.log.records.record_limits import HEADERS_PER_RECORD_MAX, TIMESTAMP_MS_MAX
from spark_log.log.records.schema import DELIVER_AT


def checked_headers(headers: object) -> Headers:
    if not isinstance(headers, list):
        raise TypeError("headers must be list-type")
    for item in headers:
        if not (isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str) and isinstance(item[1], bytes)):
            raise TypeError(f"All headers items must be (str, bytes) tuples, got {item!r}")
        try:
            item[0].encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"headers: key {item[0]!r} is no UTF-8 text: {error}") from None
    if len(headers) > HEADERS_PER_RECORD_MAX:
        raise kafka_error(InvalidRecordError(f"headers: {len(headers)}, at most {HEADERS_PER_RECORD_MAX} are allowed"))
    return list(headers)


def checked_bytes(field: str, data: Any) -> bytes | None:
    """Return the data as bytes. A buffer is copied, because the caller may change it later."""
    if data is None or type(data) is bytes:
        return data
    if not isinstance(data, bytes | bytearray | memoryview):
        raise TypeError(f"Unsupported type for serialized {field}: {type(data)}")
    return bytes(data)


def checked_size(key: bytes | None, value: bytes | None, headers: Headers | None, size_max: int) -> int:
    """Return the size of a record in bytes. Raises MessageSizeTooLargeError if it is above `size_max`."""
    size: int = DefaultRecordBatchBuilder.estimate_size_in_bytes(key, value, headers or [])
    if size > size_max:
        raise kafka_error(
            MessageSizeTooLargeError(f"The message is {size} bytes when serialized, max_request_size is {size_max}")
        )
    return size


def deliver_at_header(deliver_at_ms: object) -> tuple[str, bytes]:
    """Return the header of a record that share groups deliver at this time or later."""
    if isinstance(deliver_at_ms, bool) or not isinstance(deliver_at_ms, int):
        raise TypeError(f"deliver_at_ms: expected a whole number, got {deliver_at_ms!r}")
    if not 0 <= deliver_at_ms <= TIMESTAMP_MS_MAX:
        raise ValueError(f"deliver_at_ms: {deliver_at_ms} is outside [0, {TIMESTAMP_MS_MAX}]")
    return DELIVER_AT, str(deliver_at_ms).encode()


def check_delivery_time(deliver_at_ms: int, topic: Topic, now_ms: int) -> None:
    """Raise ValueError if retention would remove a record of the topic before its delivery."""
    keeps_ms = topic.config.retention_ms
    if "delete" in topic.config.cleanup_policy and 0 <= keeps_ms < deliver_at_ms - now_ms:
        raise ValueError(
            f"deliver_at_ms: {deliver_at_ms} is more than retention.ms={keeps_ms} of topic {topic.name!r} from now"
        )


def check_timestamp(timestamp_ms: object) -> None:
    if isinstance(timestamp_ms, bool) or not isinstance(timestamp_ms, int):
        raise TypeError(f"timestamp_ms: expected a whole number, got {timestamp_ms!r}")
    if not 0 <= timestamp_ms <= TIMESTAMP_MS_MAX:
        raise kafka_error(InvalidTimestampError(f"timestamp_ms: {timestamp_ms} is outside [0, {TIMESTAMP_MS_MAX}]"))
