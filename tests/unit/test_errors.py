"""The error tree: every error says when it is raised and what to do."""

import inspect

import pytest

from spark_log import errors
from spark_log.errors.first_failure import FirstFailure

CLASSES = [value for value in vars(errors).values() if inspect.isclass(value)]
ERRORS = [value for value in CLASSES if issubclass(value, errors.SparkLogError) and value is not errors.SparkLogError]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_docstring_says_when_it_is_raised_and_what_to_do(error: type[errors.SparkLogError]) -> None:
    when, separator, remedy = inspect.getdoc(error).partition("\n\nRemedy: ")  # type: ignore[union-attr]
    assert when.endswith((".", ".)")) and separator and remedy, error.__doc__


def test_the_first_failure_of_several_topics_is_raised_at_the_end_whatever_its_kind() -> None:
    def attempt_all() -> None:
        with FirstFailure() as failure:
            for topic in ("damaged", "unavailable", "whole"):
                with failure.attempt():
                    if topic != "whole":
                        raise KeyError if topic == "damaged" else errors.StorageUnavailableError
                    done.append(topic)

    done: list[str] = []
    with pytest.raises(KeyError):
        attempt_all()
    assert done == ["whole"]
