import inspect

import pytest
from kafka import errors as kafka

from spark_log import errors
from spark_log.errors import SparkLogError, UnknownTopicOrPartitionError
from spark_log.gateway.error_codes import (
    _INSTEAD,
    _UNKNOWN_TO_KAFKA_PYTHON,
    NONE,
    SERVER_FAULTS,
    UNKNOWN_SERVER_ERROR,
    error_code,
    outcome_of,
)

ERRORS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, SparkLogError)]


def code_of(kind):
    return error_code(kind.__new__(kind))  # some have arguments


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_every_error_has_a_chosen_code(kind):
    same_name = getattr(getattr(kafka, kind.__name__, None), "errno", None) is not None
    sources = [kind.__name__ in chosen for chosen in (_INSTEAD, _UNKNOWN_TO_KAFKA_PYTHON, SERVER_FAULTS)]
    assert sum(sources) == 1 or (same_name and not any(sources))
    code = code_of(kind)
    assert (code == UNKNOWN_SERVER_ERROR) == (kind.__name__ in SERVER_FAULTS)
    assert code != NONE


def test_errors_that_clients_repeat_after_are_retriable_for_them():
    codes = {kind.errno: kind for _, kind in inspect.getmembers(kafka, inspect.isclass) if hasattr(kind, "errno")}
    retriable = [kind for kind in ERRORS if kind.retriable and kind.__name__ not in SERVER_FAULTS]
    assert [kind.__name__ for kind in retriable if not codes[code_of(kind)].retriable] == []


def test_message_of_an_outcome_is_bounded_and_without_passwords():
    def fail():
        raise UnknownTopicOrPartitionError("postgresql://user:secret@host/" + "x" * 40_000)

    outcome = outcome_of(fail)
    assert (outcome.code, len(outcome.message)) == (3, 1000)
    assert "secret" not in outcome.message
