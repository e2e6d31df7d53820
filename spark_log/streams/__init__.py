"""Stream processing: DataFrame -> DataFrame, and writing what comes out once.

>>> from spark_log.streams import TopicOutput, Tumbling, windowed, write_stream          # doctest: +SKIP

Names are looked up when they are used: executors import this package's parents for every task and need none of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_log.streams.aggregation import running as running
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
    "ConsoleOutput": "outputs",
    "DeltaOutput": "outputs",
    "Session": "windows",
    "Sliding": "windows",
    "TopicOutput": "outputs",
    "Tumbling": "windows",
    "late_records": "windows",
    "running": "aggregation",
    "windowed": "windows",
    "write_stream": "outputs",
}

__all__ = [
    "ConsoleOutput",
    "DeltaOutput",
    "Session",
    "Sliding",
    "TopicOutput",
    "Tumbling",
    "late_records",
    "running",
    "windowed",
    "write_stream",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
