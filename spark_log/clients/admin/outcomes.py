"""Converts the errors of a request for several objects to one outcome per object, as in a broker's answers."""

from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

from kafka.errors import KafkaError, UnknownError

from spark_log.clients.kafka_errors import kafka_error
from spark_log.errors import SparkLogError

P = ParamSpec("P")
T = TypeVar("T")


def outcome_of(action: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> tuple[T | None, Exception | None]:
    """Return (result of `action`, None), or (None, its error converted to kafka-python's)."""
    try:
        return action(*arguments, **keywords), None
    except SparkLogError as error:
        return None, kafka_error(error)
    except KafkaError as error:
        return None, error


def error_fields(error: Exception | None) -> dict[str, Any]:
    """Return `error_code` and `error_message` as in a broker's answer."""
    if error is None:
        return {"error_code": 0, "error_message": None}
    code = getattr(error, "errno", None)
    return {"error_code": UnknownError.errno if code is None else code, "error_message": str(error.args[0])}


def raise_first(errors: Iterable[Exception | None]) -> None:
    for error in errors:
        if error is not None:
            raise error
