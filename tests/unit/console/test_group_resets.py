"""The field of a reset of offsets that a form sends."""

import pytest

from spark_log.console.pages.group_resets import _parse_offsets
from spark_log.errors import InvalidConfigurationError


@pytest.mark.parametrize("text", ["", "[" * 100_000, "[]", "{}", '[["t", 0, 1]]', '[["t", -1, 1, 2]]'])
def test_offsets_that_are_no_list_of_resets_are_refused(text):
    with pytest.raises(InvalidConfigurationError, match="offsets: expected a JSON list"):
        _parse_offsets(text)
