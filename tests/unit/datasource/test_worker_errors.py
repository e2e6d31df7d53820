"""Which errors lose their traceback, and where."""

import os
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from spark_log.datasource.worker_errors import message_only
from spark_log.errors import InvalidOptionError


@message_only
class Reader:
    def plan(self, error: Exception) -> None:
        raise error

    def read(self, error: Exception) -> Iterator[int]:
        yield 1
        raise error


@pytest.mark.parametrize("process", ["pyspark.daemon", "pytest"])
@pytest.mark.parametrize("error", [InvalidOptionError("wrong"), KeyError("a defect")])
def test_only_errors_of_ours_in_processes_of_spark(
    monkeypatch: pytest.MonkeyPatch, process: str, error: Exception
) -> None:
    hidden = "1" if process.startswith("pyspark") and isinstance(error, InvalidOptionError) else None
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", SimpleNamespace(name=process))
    for call in (lambda: Reader().plan(error), lambda: list(Reader().read(error))):
        monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")  # so that it is restored
        monkeypatch.delenv("SPARK_HIDE_TRACEBACK")
        with pytest.raises(type(error)):
            call()
        assert os.environ.get("SPARK_HIDE_TRACEBACK") == hidden
