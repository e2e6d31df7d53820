"""Errors of the data source without the traceback of the Python process in which Spark runs it.

Spark shows the traceback first and the message last, unless SPARK_HIDE_TRACEBACK is set in the process in which the
error was raised (its own setting for that hides the traceback of defects, too). Such a process ends with the error.
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
    """Class decorator: what a public method raises of our errors is shown by its message; others keep the traceback."""
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

    return iterate if inspect.isgeneratorfunction(method) else call


def hide_traceback() -> None:
    """Show the error that is about to be raised by its message alone."""
    main = getattr(sys.modules["__main__"], "__spec__", None)
    if main is not None and main.name.startswith("pyspark."):  # a process of Spark's: `python -m pyspark.daemon`
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
