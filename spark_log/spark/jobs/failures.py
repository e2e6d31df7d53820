"""Shows an error in one line, and finds errors of spark-log inside errors of Spark."""

import re
import sys
from collections.abc import Callable, Iterable
from typing import NoReturn

from spark_log.errors import SparkLogError, redact
from spark_log.spark.delta_jars import NOT_INSTALLED

_OURS_INSIDE_SPARKS = re.compile(r"spark_log\.errors\.(\w+): (.+)")
_RAISED_IN_A_QUERY = re.compile(r"\[USER_RAISED_EXCEPTION\] (.+?)(?: SQLSTATE|$)", re.MULTILINE)
_DELTA_MISSING = re.compile(r"DATA_SOURCE_NOT_FOUND\].*\bdelta\b|DeltaCatalog", re.IGNORECASE)
_NO_JAVA = "JAVA_GATEWAY_EXITED"
_ABOUT_JAVA = (
    "Java did not start (Spark's message is above): Spark needs Java 17 on PATH or in JAVA_HOME"
    " (Debian: apt-get install openjdk-17-jre-headless)"
)

_STACK_TRACE = "  (for Spark's stack trace: spark-submit --conf spark.log.level=WARN)"


def _ours(error: BaseException) -> list[str]:
    """Return the messages of spark-log, or else of Spark SQL's raise_error, inside an error of Spark."""
    return [text for _, text in _OURS_INSIDE_SPARKS.findall(str(error))] or _RAISED_IN_A_QUERY.findall(str(error))


def raise_error_of_task(error: BaseException, kinds: Iterable[type[SparkLogError]]) -> NoReturn:
    """Raise spark-log's error inside Spark's `error` if it is one of `kinds`; otherwise raise `error`."""
    named = {kind.__name__: kind for kind in kinds}
    inside = _OURS_INSIDE_SPARKS.findall(str(error))
    if inside and inside[-1][0] in named:
        kind, text = inside[-1]
        raise named[kind](text) from error
    raise error


def one_line(error: BaseException) -> str:
    """Return the message for the user, without a traceback and without passwords."""
    text = str(error)
    if inside := _ours(error):
        text = inside[-1]
    elif _DELTA_MISSING.search(text):
        text = NOT_INSTALLED
    elif _NO_JAVA in text:
        text = _ABOUT_JAVA
    elif not isinstance(error, SparkLogError):
        text = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    return redact(" ".join(text.split()))


def guarded(job: str, body: Callable[[], int]) -> int:
    """Return the exit code of `body`. Print an error of spark-log, Spark or the machine in one line, and return 1."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        return body()
    except (SparkLogError, OSError, PySparkException, Py4JError) as error:
        print(f"{job}: {one_line(error)}", file=sys.stderr, flush=True)
        if isinstance(error, PySparkException | Py4JError) and not _ours(error) and _NO_JAVA not in str(error):
            print(_STACK_TRACE, file=sys.stderr, flush=True)
        return 1
