"""The error tree: every error says when it is raised and what to do."""

import inspect

import pytest

from spark_log import errors

ERRORS = [
    value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, errors.SparkLogError)
]


@pytest.mark.parametrize("error", ERRORS[1:], ids=lambda error: error.__name__)
def test_docstring_says_when_it_is_raised_and_what_to_do(error: type[errors.SparkLogError]) -> None:
    when, separator, remedy = inspect.getdoc(error).partition("\n\nRemedy: ")  # type: ignore[union-attr]
    assert when.endswith((".", ".)")) and separator and remedy, error.__doc__
    assert error.__name__ in (errors.__doc__ or ""), "the tree at the top of the module names it"
