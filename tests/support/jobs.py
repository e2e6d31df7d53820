"""Jobs that run through `main()` in the Spark session of the tests, without a separate JVM."""

import io
import os
import signal
import threading
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import SparkSession


class Printed(NamedTuple):
    out: str
    err: str


def run_job(
    spark: SparkSession,
    cluster: Path,
    job: str,
    *arguments: str,
    exit_code: int = 0,
    until: Callable[[str], bool] | None = None,
) -> Printed:
    """Run `job` in `spark`; returns its output.

    With `until`, this process gets SIGTERM as soon as `until` is true of the job's stdout so far. A thread polls it
    once the job handles signals.
    """
    assert spark is not None, "main() takes the active session"
    main = import_module(f"spark_log.spark.jobs.{job}").main
    out, err = io.StringIO(), io.StringIO()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    ended = threading.Event()

    def due() -> bool:
        handled = signal.getsignal(signal.SIGTERM) != before[signal.SIGTERM]
        return handled and until is not None and until(out.getvalue())

    def terminate_when_due() -> None:
        while not ended.wait(0.05):
            if due():
                os.kill(os.getpid(), signal.SIGTERM)
                return

    watch = threading.Thread(target=terminate_when_due)
    watch.start()
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = main([*arguments, "--cluster", str(cluster)])
    finally:
        ended.set()
        watch.join()
        for number, handler in before.items():
            signal.signal(number, handler)
    assert code == exit_code, out.getvalue() + err.getvalue()
    return Printed(out.getvalue(), err.getvalue())
