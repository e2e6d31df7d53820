"""Measures the time of a job: the start of Spark, planning, writing, and the time after the last task."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from uuid import uuid4

from pyspark.sql import SparkSession

from spark_log import clock
from spark_log.spark.jobs.queries.query_runner import Totals
from spark_log.spark.jobs.summary import Stages


class Stopwatch:
    """Times the query of a job.

    A batch uses `with stopwatch.query(): <the action>`, then `stages()`. A stream uses `stages_of`.
    """

    def __init__(self, spark: SparkSession, jvm_start_ms: int | None) -> None:
        """Start the clock: the session is ready. `jvm_start_ms` is None if the job did not start the JVM."""
        self._spark = spark
        self._ready_ms, self._ready_s = clock.wall_ms(), clock.monotonic_s()
        self._start_s = 0.0 if jvm_start_ms is None else (self._ready_ms - jvm_start_ms) / 1000
        self._writing: tuple[int, int] | None = None

    @property
    def seconds(self) -> float:
        """The time in seconds since the session was ready."""
        return clock.monotonic_s() - self._ready_s

    @contextmanager
    def query(self) -> Iterator[None]:
        """Measure the time of the action's Spark jobs: from the start of the first to the end of the last."""
        context, tag = self._spark.sparkContext, f"spark-log-{uuid4().hex}"
        context.addJobTag(tag)
        try:
            yield
        finally:
            context.removeJobTag(tag)
        self._writing = _times_of(context, tag)

    def stages(self) -> Stages | None:
        """Return the stages of the query, or None if Spark did not report its times."""
        if self._writing is None:
            return None
        first, last = self._writing
        planning, writing, rest = first - self._ready_ms, last - first, clock.wall_ms() - last
        return Stages(self._start_s, max(0, planning) / 1000, writing / 1000, max(0, rest) / 1000)

    def stages_of(self, totals: Totals) -> Stages:
        """Return the stages of a streaming query, summed over its batches."""
        return replace(totals.stages, start=self._start_s)


def _times_of(context: Any, tag: str) -> tuple[int, int] | None:
    """Return the start of the first and the end of the last job with a tag, in milliseconds since 1970."""
    scala = context._jsc.sc()
    scala.listenerBus().waitUntilEmpty()  # the last job's end is reported asynchronously
    jobs = [scala.statusStore().job(number) for number in scala.statusTracker().getJobIdsForTag(tag)]
    starts = [job.submissionTime().get().getTime() for job in jobs if job.submissionTime().isDefined()]
    ends = [job.completionTime().get().getTime() for job in jobs if job.completionTime().isDefined()]
    return (min(starts), max(ends)) if starts and ends else None
