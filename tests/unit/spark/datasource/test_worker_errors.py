"""The errors whose traceback is hidden, and the processes in which it is."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from spark_log.errors import InvalidOptionError
from spark_log.spark.datasource.worker_errors import message_only


@message_only
class Reader:
    def plan(self, error: Exception) -> None:
        raise error

    def read(self, error: Exception) -> Iterator[int]:
        yield 1
        raise error


@pytest.mark.parametrize("process", ["pyspark.daemon", "pytest"])
@pytest.mark.parametrize("error", [InvalidOptionError("wrong"), KeyError("a defect")])
def test_only_our_errors_in_processes_of_spark_hide_the_traceback(
    monkeypatch: pytest.MonkeyPatch, process: str, error: Exception
) -> None:
    hidden = "1" if process.startswith("pyspark") and isinstance(error, InvalidOptionError) else None
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", SimpleNamespace(name=process))
    for call in (lambda: Reader().plan(error), lambda: list(Reader().read(error))):
        monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")  # registers the variable, so that its value is restored
        monkeypatch.delenv("SPARK_HIDE_TRACEBACK")
        with pytest.raises(type(error)):
            call()
        assert os.environ.get("SPARK_HIDE_TRACEBACK") == hidden


def test_process_ends_silently_when_spark_needs_no_more_rows() -> None:
    """As in pyspark.worker when Spark has closed the socket (LIMIT): the iterator is closed while the write fails."""
    program = """
import sys
from types import SimpleNamespace
from tests.unit.spark.datasource.test_worker_errors import Reader

sys.modules["__main__"].__spec__ = SimpleNamespace(name="pyspark.daemon")
rows = (row for row in Reader().read(KeyError()))
try:
    next(rows)
    raise BrokenPipeError
finally:
    rows.close()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=Path(__file__).parents[4]
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")
