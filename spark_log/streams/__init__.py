"""Stream processing: DataFrame -> DataFrame, and writing what comes out once.

>>> from spark_log.streams import TopicOutput, Tumbling, windowed, write_stream          # doctest: +SKIP

Names are looked up when they are used: executors import this package's parents for every task and need none of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_log.streams.aggregation import running as running
    from spark_log.streams.bad_records import dead_letters as dead_letters
    from spark_log.streams.bad_records import valid as valid
    from spark_log.streams.codecs import Avro as Avro
    from spark_log.streams.codecs import Confluent as Confluent
    from spark_log.streams.codecs import Json as Json
    from spark_log.streams.codecs import Protobuf as Protobuf
    from spark_log.streams.codecs import decode as decode
    from spark_log.streams.codecs import encode as encode
    from spark_log.streams.outputs import ConsoleOutput as ConsoleOutput
    from spark_log.streams.outputs import DeltaOutput as DeltaOutput
    from spark_log.streams.outputs import TopicOutput as TopicOutput
    from spark_log.streams.outputs import write_stream as write_stream
    from spark_log.streams.windows import Session as Session
    from spark_log.streams.windows import Sliding as Sliding
    from spark_log.streams.windows import Tumbling as Tumbling
    from spark_log.streams.windows import late_records as late_records
    from spark_log.streams.windows import windowed as windowed

_HOME = {
    "Avro": "codecs",
    "Confluent": "codecs",
    "ConsoleOutput": "outputs",
    "DeltaOutput": "outputs",
    "Json": "codecs",
    "Protobuf": "codecs",
    "Session": "windows",
    "Sliding": "windows",
    "TopicOutput": "outputs",
    "Tumbling": "windows",
    "dead_letters": "bad_records",
    "decode": "codecs",
    "encode": "codecs",
    "late_records": "windows",
    "running": "aggregation",
    "valid": "bad_records",
    "windowed": "windows",
    "write_stream": "outputs",
}

__all__ = [
    "Avro",
    "Confluent",
    "ConsoleOutput",
    "DeltaOutput",
    "Json",
    "Protobuf",
    "Session",
    "Sliding",
    "TopicOutput",
    "Tumbling",
    "dead_letters",
    "decode",
    "encode",
    "late_records",
    "running",
    "valid",
    "windowed",
    "write_stream",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
