"""Decodes values to columns and encodes them back, as JSON, Avro or Protobuf, in batch and streaming frames. JSON and
Avro use Spark's functions (Avro's are in a JAR). Protobuf runs in Spark's Python workers (extra `protobuf`).

>>> flights = decode(records, Json("carrier STRING, delay INT"))                        # doctest: +SKIP
>>> valid(flights).select("value.carrier", "offset")                                    # doctest: +SKIP
>>> dead_letters(flights)                    # the bad records, with the reason          # doctest: +SKIP

The following values are bad. A null value is not bad: it is a tombstone, and stays null.

    Json       bytes that are not UTF-8; text that is not exactly one JSON object (RFC 8259); a field whose value does
               not have the schema's type by the rules of from_json: text for a number, a fraction for an integer and
               a number out of range are bad, any value is valid for STRING; a NOT NULL field that is null or missing.
               Fields that the schema does not name are ignored.
    Avro       bytes that are not exactly one record of the schema; truncated and trailing bytes are detected. Avro's
               bytes do not identify their schema: a record of another schema may be accepted.
    Protobuf   bytes that Protobuf's parser refuses, such as truncated ones; a field of another wire type; a required
               field that is missing; text that is not UTF-8; a Timestamp out of range. Some errors cannot be detected:
               unknown fields are allowed, so a message of another type may be accepted; most fields may be absent, so
               a message cut between two fields is valid, and so is an empty one. A number that is not a value of its
               proto2 enum is an unknown field, and null.

With Confluent's framing, bytes without the framing or with the id of another schema are bad too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import BinaryType, StringType, StructType

from spark_log.errors import InvalidOptionError, needing
from spark_log.spark.streams.formats.json_text import json_text
from spark_log.spark.streams.formats.parsing import Parser, avro_parser, from_column, json_parser, needing_avro

RAW, ERROR = "raw", "error"
"""Columns that `decode` adds: the original bytes, and the reason why they are bad (null if they are valid)."""

_FRAME_BYTES = 5
_BARE, _PARSED = "_spark_log_bare", "_spark_log_parsed"


@dataclass(frozen=True)
class Confluent:
    """Confluent's wire format: a zero byte, the schema's id (4 bytes, big-endian), then the message. In front of a
    Protobuf message is its index in the schema's file: a zero byte for the first message, the usual one.

    Encoding requires `schema_id`. Decoding accepts messages of this schema only, or of any schema if it is None.
    """

    schema_id: int | None = None

    def __post_init__(self) -> None:
        if self.schema_id is not None and not 0 <= self.schema_id < 2**31:
            raise InvalidOptionError(f"schema_id: expected a number from 0 to 2147483647, got {self.schema_id!r}")

    @property
    def begin(self) -> bytes:
        """The first bytes of every message: the zero byte, and the schema's id if it is set."""
        return b"\0" if self.schema_id is None else b"\0" + self.schema_id.to_bytes(4, "big")


@dataclass(frozen=True)
class Json:
    """JSON objects. `schema` is DDL or a StructType, and required for decoding. `options` are those of from_json and
    to_json, such as timestampFormat.
    """

    schema: str | StructType | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    framing: Confluent | None = None


@dataclass(frozen=True)
class Avro:
    """Avro records. `schema` is the record's schema as JSON text."""

    schema: str
    framing: Confluent | None = None


@dataclass(frozen=True)
class Protobuf:
    """Protobuf messages. `message` is the full name, such as "shop.Order". `descriptor` is the path or the bytes of a
    descriptor set (protoc --include_imports --descriptor_set_out). `protobuf.py` lists the types of the columns.
    """

    message: str
    descriptor: str | bytes
    framing: Confluent | None = None

    @property
    def descriptor_set(self) -> bytes:
        if isinstance(self.descriptor, bytes):
            return self.descriptor
        try:
            with open(self.descriptor, "rb") as file:
                return file.read()
        except OSError as error:
            raise InvalidOptionError(f"descriptor {self.descriptor!r}: cannot be read: {error}") from error


Codec = Json | Avro | Protobuf


def decode(frame: DataFrame, codec: Codec, column: str = "value") -> DataFrame:
    """Replace `column` (binary or string) by a struct of the schema's fields, which is null if the value is null or
    bad. Add the columns `raw` (binary) and `error` (string).

    Raises InvalidOptionError for an invalid schema or column, and InvalidConfigurationError if the JAR or package that
    the codec needs is missing.
    """
    kinds = {each.name: each.dataType for each in frame.schema.fields}
    if not isinstance(kinds.get(column), BinaryType | StringType):
        raise InvalidOptionError(f"column {column!r}: expected a binary or string column, one of {frame.columns}")
    for name in (RAW, ERROR):
        if name in kinds:
            raise InvalidOptionError(f"column {name!r}: decode adds a column of this name: rename yours")
    parser = _parser(codec)
    raw = sf.col(RAW)
    framed = _framed(raw, codec)
    reason = parser.reason(sf.col(_BARE), sf.col(_PARSED))
    if framed is None:
        bare = raw
    else:
        bare = sf.when(framed, sf.expr(f"substring({RAW}, {_FRAME_BYTES + len(_message_indexes(codec)) + 1})"))
        schema_id = codec.framing.schema_id if codec.framing else None
        which = "" if schema_id is None else f" with schema id {schema_id}"
        reason = sf.when(~framed, sf.lit(f"does not begin with Confluent's framing{which}")).otherwise(reason)
    with needing_avro(frame.sparkSession):
        parsed = (
            frame.withColumn(RAW, sf.col(column).cast(BinaryType()))
            .withColumn(_BARE, bare)
            .withColumn(_PARSED, parser.parsed(sf.col(_BARE)))
            # Spark moves no filter on the result of explode to its input: a filter on `error` or `value` would
            # otherwise contain these expressions and parse the bytes several times for each row
            .select("*", sf.explode(sf.array(sf.when(raw.isNotNull(), reason))).alias(ERROR))
        )
    good = sf.when(sf.col(ERROR).isNull(), parser.value(sf.col(_PARSED)))
    return parsed.withColumn(column, good).select(*frame.columns, RAW, ERROR)


def encode(
    frame: DataFrame,
    codec: Codec,
    *,
    value: str | Column | Sequence[str] | None = None,
    key: str | Column | None = None,
    headers: Mapping[str, str | Column] | None = None,
    timestamp: str | Column | None = None,
    partition: str | Column | None = None,
) -> DataFrame:
    """Return the records that `format("spark_log")` writes: value, and key, headers, timestamp and partition if given.

    `value` is a struct (a null struct becomes a tombstone), or the names of the columns to encode; by default all.
    `key` is string or binary. Null fields are left out of JSON. Raises InvalidOptionError, InvalidConfigurationError if
    the JAR or package that the codec needs is missing, and Spark's errors if the columns do not fit the schema.
    """
    payload = payload_of(frame, value)
    columns = {
        "value": _framed_payload(encoded(frame, payload, codec), codec),
        **record_columns(key, headers, timestamp, partition),
    }
    with needing_avro(frame.sparkSession):
        return frame.select(*(column.alias(name) for name, column in columns.items()))


def payload_of(frame: DataFrame, value: str | Column | Sequence[str] | None) -> Column:
    """Return the struct that the argument `value` of `encode` means."""
    if isinstance(value, str | Column):
        return from_column(value)
    return sf.struct(*(frame.columns if value is None else value))


def record_columns(
    key: str | Column | None,
    headers: Mapping[str, str | Column] | None,
    timestamp: str | Column | None,
    partition: str | Column | None,
) -> dict[str, Column]:
    """Return the given columns of a record, without value."""
    columns = dict[str, Column]()
    if key is not None:
        columns["key"] = from_column(key)
    if headers is not None:
        pairs = [
            sf.struct(sf.lit(name).alias("key"), from_column(text).cast(BinaryType()).alias("value"))
            for name, text in headers.items()
        ]
        columns["headers"] = sf.array(*pairs)
    if timestamp is not None:
        columns["timestamp"] = from_column(timestamp)
    if partition is not None:
        columns["partition"] = from_column(partition)
    return columns


def _parser(codec: Codec) -> Parser:
    match codec:
        case Json():
            return json_parser(_schema_of(codec), codec.options)
        case Avro():
            return avro_parser(codec.schema)
        case Protobuf():
            with needing("Protobuf", "protobuf"):
                from spark_log.spark.streams.formats.protobuf import protobuf_parser
            return protobuf_parser(codec.message, codec.descriptor_set)


def _schema_of(codec: Json) -> StructType:
    if codec.schema is None:
        raise InvalidOptionError("schema: required to decode JSON, such as Json('carrier STRING, delay INT')")
    if isinstance(codec.schema, StructType):
        return codec.schema
    try:
        schema = StructType.fromDDL(codec.schema)
    except Exception as error:
        raise InvalidOptionError(f"schema {codec.schema!r}: not a DDL: {str(error).splitlines()[0]}") from error
    if not isinstance(schema, StructType):
        raise InvalidOptionError(f"schema {codec.schema!r}: expected fields, as 'carrier STRING, delay INT'")
    return schema


def encoded(frame: DataFrame, payload: Column, codec: Codec) -> Column:
    """Return the encoded bytes of a struct, without framing."""
    match codec:
        case Json():
            return json_text(frame, payload, codec.options).cast(BinaryType())
        case Avro():
            from pyspark.sql.avro.functions import to_avro

            return to_avro(payload, codec.schema)
        case Protobuf():
            with needing("Protobuf", "protobuf"):
                from spark_log.spark.streams.formats.protobuf import protobuf_payload
            return protobuf_payload(frame, payload, codec.message, codec.descriptor_set)


def _message_indexes(codec: Codec) -> bytes:
    """Return the bytes between Confluent's schema id and the message."""
    if not isinstance(codec, Protobuf):
        return b""
    with needing("Protobuf", "protobuf"):
        from spark_log.log.columns.protobuf.messages import message_indexes
    return message_indexes(codec.message, codec.descriptor_set)


def _framed(raw: Column, codec: Codec) -> Column | None:
    """Return the condition that the bytes have the codec's framing, or None for a codec without framing."""
    if codec.framing is None:
        return None
    begin, indexes = codec.framing.begin, _message_indexes(codec)
    framed = raw.substr(1, len(begin)) == sf.lit(begin)
    if indexes:
        framed = framed & (raw.substr(_FRAME_BYTES + 1, len(indexes)) == sf.lit(indexes))
    return framed & (sf.octet_length(raw) >= _FRAME_BYTES + len(indexes))


def _framed_payload(payload: Column, codec: Codec) -> Column:
    if codec.framing is None:
        return payload
    if codec.framing.schema_id is None:
        raise InvalidOptionError("schema_id: required to encode with Confluent's framing")
    return sf.concat(sf.lit(codec.framing.begin + _message_indexes(codec)), payload)
