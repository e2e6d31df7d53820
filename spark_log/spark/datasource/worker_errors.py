"""Shows errors of the data source without the traceback of the Python process in which Spark runs it.

Spark shows the traceback first and the message last, unless the process that raises the error, and ends with it, has
set SPARK_HIDE_TRACEBACK. (Spark's own setting for this would also hide the tracebacks of defects.)
"""

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from spark_log.errors import SparkLogError

_Class = TypeVar("_Class")


def message_only(cls: type[_Class]) -> type[_Class]:
    """Decorate a class: spark-log's errors from public methods show only their message; others keep the traceback."""
    for name, method in list(vars(cls).items()):
        if inspect.isfunction(method) and not name.startswith("_"):
            setattr(cls, name, _wrapped(method))
    return cls


def _wrapped(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except SparkLogError:
            hide_traceback()
            raise

    @functools.wraps(method)
    def iterate(*args: Any, **kwargs: Any) -> Iterator[Any]:
        try:
            yield from method(*args, **kwargs)
        except SparkLogError:
            hide_traceback()
            raise
        except GeneratorExit as closed:
            if isinstance(closed.__context__, BrokenPipeError | ConnectionResetError) and _in_process_of_spark():
                # Spark has all the rows it needs (LIMIT) and has closed the connection. The process would end now in
                # any case, but would first print that it cannot flush its last rows
                os._exit(1)
            raise

    return iterate if inspect.isgeneratorfunction(method) else call


def hide_traceback() -> None:
    """Show only the message of the error that is about to be raised."""
    if _in_process_of_spark():
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"


def _in_process_of_spark() -> bool:
    """Whether Spark started this process to run the data source, as `python -m pyspark.daemon` for example."""
    main = getattr(sys.modules["__main__"], "__spec__", None)
    return main is not None and main.name.startswith("pyspark.")
