"""Errors of records, their schemas and their offsets."""

from collections.abc import Mapping
from typing import Any

from spark_log.errors.base import FatalError, RetriableError


class InvalidRecordError(FatalError):
    """A record has a field that the log cannot store: a wrong type, no value, or no key in a compacted topic. Nothing
    of the write was appended.

    Remedy: correct the record that the message names.
    """


class MessageSizeTooLargeError(InvalidRecordError):
    """A record (key, value and headers) is larger than max.message.bytes.

    Remedy: make the record smaller, or raise the topic's max.message.bytes.
    """


class InvalidTimestampError(InvalidRecordError):
    """A record's timestamp is null, negative, or outside message.timestamp.before.max.ms and
    message.timestamp.after.max.ms.

    Remedy: correct the timestamp and the clock of its source, or raise the limit.
    """


class InvalidSchemaError(FatalError):
    """A schema of a topic's keys or values cannot be read, or its fields cannot be columns: an unknown type, a
    name that Delta tables cannot have, names that differ in case only, too many fields.

    Remedy: correct the field that the message names.
    """


class IncompatibleSchemaError(FatalError):
    """The new schema gives a column of the topic another type, or has a name that differs from a column's in case only;
    or it is not compatible with the versions of its subject in the schema registry. The schema was not changed.

    Remedy: give the field a new name; or, for a subject, give a new field a default, or change the compatibility level.
    """


class SchemaRegistryError(FatalError):
    """The schema registry refuses the request: the version, the mode, the compatibility level or the subject's name is
    not valid, the subject is read-only, or another schema refers to the version.

    Remedy: correct the argument that the message names. `error_code` is that of Confluent's Schema Registry.
    """

    def __init__(self, message: str, error_code: int) -> None:
        super().__init__(message, error_code)
        self.error_code = error_code

    def __str__(self) -> str:
        return str(self.args[0])


class SchemaNotFoundError(SchemaRegistryError):
    """The schema registry has no such subject, version or schema.

    Remedy: list what there is with `Registry.subjects()` and `Registry.versions()`; register the schema.
    """


class SchemaRegistryUnavailableError(RetriableError):
    """The schema registry of a topic (schema.registry.url) does not answer. Tails with values of a schema that is not
    known yet are sealed later; appends continue.

    Remedy: check the address and the server; the waiting tails are sealed when it answers again.
    """


class OffsetOutOfRangeError(FatalError):
    """The offset is below the log start offset or above the high watermark: the records were removed by retention, or
    do not exist yet.

    Remedy: seek to an offset in the range that the message names, or set auto_offset_reset.
    """


class LogTruncationError(FatalError):
    """An unclean leader election, or the restore of an older metadata store, removed records that the reader has read:
    its position belongs to the lost part of the log.

    Remedy: seek to `divergent_offsets` and handle what was read beyond them, or set auto_offset_reset.

    `divergent_offsets` has for each partition the offset at which to continue, `partition_offsets` that of the reader.
    Keys are TopicPartitions; a client's `divergent_offsets` has OffsetAndMetadata values.
    """

    def __init__(
        self, divergent_offsets: Mapping[Any, Any], partition_offsets: Mapping[Any, int] | None = None
    ) -> None:
        super().__init__(divergent_offsets)  # the argument of kafka-python's class, if that is a base too
        self.divergent_offsets = dict(divergent_offsets)
        self.partition_offsets = dict(partition_offsets or {})
        self.args = (self.divergent_offsets, self.partition_offsets)

    def __str__(self) -> str:
        return f"log truncated below the positions {self.partition_offsets}: diverging at {self.divergent_offsets}"


class NoOffsetForPartitionError(FatalError):
    """The group has committed no offset for the partition, and auto_offset_reset is none.

    Remedy: commit or seek to an offset, or set auto_offset_reset to earliest or latest.
    """


class DataLossError(FatalError):
    """Records that the reader still had to read are gone: removed by retention, lost in an election, or their topic was
    deleted.

    Remedy: find the cause in the message; then start from a new position, or continue over the gap with
    failOnDataLoss=false.
    """
