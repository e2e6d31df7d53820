"""The rows that a consume job hands to its sink, counted on their way."""

from typing import cast

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as sf
from pyspark.sql.types import StringType, StructType

from spark_log.jobs.consume import Console, ConsumeArguments, OtherTopic
from spark_log.jobs.measurement import bytes_of, measured

MALFORMED = "_malformed"
"""Column with --value-schema: the value's text, where it is no JSON of that schema; else null."""

_BYTES = "_bytes_of_key_and_value"


def shaped(frame: DataFrame, arguments: ConsumeArguments, observation: Observation | None) -> DataFrame:
    """What goes to the sink; `observation` (None for a stream) learns how much went.

    A copy has the columns that are written. --value-schema makes columns of the value, and puts `_` before the names of
    the record's own: _key (as text), _topic, _partition, _offset, _timestamp, _headers. Else all columns as they are,
    key and value as text on the console.
    """
    frame = frame.withColumn(_BYTES, bytes_of("key", "value"))
    malformed = None
    if isinstance(arguments.sink, OtherTopic):
        kept = ["key", "value", "headers", "timestamp", *(["partition"] if arguments.sink.keep_partitions else [])]
        frame = frame.select(*kept, _BYTES)
    elif arguments.value_schema is not None:
        frame = _parsed(frame, arguments.value_schema)
        malformed = sf.col(MALFORMED)
    elif isinstance(arguments.sink, Console):
        frame = frame.withColumns({name: sf.col(name).cast(StringType()) for name in ("key", "value")})
    if observation is not None and isinstance(arguments.sink, Console):
        frame = frame.limit(arguments.sink.limit)  # of a batch, only what is shown is read, and counted
    return measured(frame, sf.col(_BYTES), malformed, observation).drop(_BYTES)


def _parsed(frame: DataFrame, ddl: str) -> DataFrame:
    schema = cast(StructType, StructType.fromDDL(ddl)).add(MALFORMED, StringType())
    value = sf.from_json(sf.col("value").cast(StringType()), schema, {"columnNameOfCorruptRecord": MALFORMED})
    about = [name for name in frame.columns if name not in ("value", "timestampType", _BYTES)]
    record = frame.withColumns({"key": sf.col("key").cast(StringType()), "value": value})
    return record.select(*(sf.col(name).alias(f"_{name}") for name in about), "value.*", _BYTES)
