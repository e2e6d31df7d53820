"""Starts and ends the Spark session of a job. Settings of spark-submit and spark-defaults.conf override those here."""

import logging
import os
from collections.abc import Mapping
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote
from pyspark.util import default_api_mode

from spark_log.errors import ClassicSessionRequiredError
from spark_log.spark import delta_jars, launcher
from spark_log.spark.datasource.write.topic_write import activate_session

_DEFAULTS = {
    # every machine prints and parses timestamps in the same way
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
}
_LOG_LEVEL = "spark.log.level"
_LOG_FAILURES = [
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.sql.execution.datasources.v2.AppendDataExec",
    "org.apache.spark.sql.execution.datasources.v2.DataWritingSparkTask",
    "org.apache.spark.sql.execution.datasources.v2.WriteToDataSourceV2Exec",
    "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution",
    "org.apache.spark.util.Utils",
]
"""Loggers that write the stack trace of a failed task, about 100 lines, before the job reports the error."""
_SPARKS_LOGGING = "org/apache/spark/log4j2-defaults.properties"


_started: SparkSession | None = None
"""The session that a job has started and has to stop."""


def start_session(name: str, *, delta: bool) -> SparkSession:
    """Return a session with format("spark_log"), and with `delta` also format("delta"). `end_session` ends it.

    Raises ClassicSessionRequiredError if Spark Connect is selected. With `delta`, raises DeltaNotInstalledError if
    Delta's JARs are missing.
    Spark logs warnings only, unless spark.log.level or a log4j2 file of the user sets another level. With a local
    master, the first failed task ends the job, so failed tasks are not logged either, unless spark.log.level is set.
    If the program has an active session, the job uses its Spark in a new session with SQL settings of its own.
    """
    if _connect_is_selected():
        raise ClassicSessionRequiredError(
            "a job does not run over Spark Connect: leave out --remote, spark.api.mode and SPARK_REMOTE, or call the"
            " functions of spark_log.spark.streams in a program of your own"
        )
    # failures.py reports the error; this logger writes a stack trace as one line of JSON
    PySparkLogger.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    defaults = {**_DEFAULTS, **(delta_jars.DELTA_SETTINGS if delta else {})}
    active = SparkSession.getActiveSession()
    session = _start(name, defaults) if active is None else _beside(active)
    if delta:
        delta_jars.check_loaded(session)
    return session


def _connect_is_selected() -> bool:
    """Whether a new session would use Spark Connect. spark-submit passes --remote and spark.api.mode in
    PYSPARK_REMOTE_INIT_CONF_*.
    """
    by_name = {"SPARK_REMOTE", "PYSPARK_REMOTE_INIT_CONF_LEN"} & os.environ.keys()
    mode = os.environ.get("SPARK_API_MODE") or default_api_mode()
    return is_remote() or bool(by_name) or mode.lower() == "connect"


def jvm_start_ms(session: SparkSession) -> int | None:
    """Return the start of the JVM of a session from `start_session`, in ms since 1970; None for other sessions."""
    if session is not _started:
        return None
    jvm: Any = SparkContext._jvm
    return int(jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getStartTime())


def end_session(session: SparkSession) -> None:
    """Stop the Spark that `start_session` has started. The Spark of the calling program continues."""
    global _started
    if session is _started:
        _started = None
        session.stop()


def _start(name: str, defaults: Mapping[str, str]) -> SparkSession:
    global _started
    os.environ.setdefault("PYSPARK_PYTHON", launcher.executable())
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", os.environ["PYSPARK_PYTHON"])
    builder = SparkSession.builder.appName(name)
    SparkContext._ensure_initialized()  # gives SparkConf the settings of spark-submit
    if _logging_is_sparks():
        defaults = {**defaults, _LOG_LEVEL: "WARN"}
    spark_conf = SparkConf()
    for key, value in defaults.items():
        if not spark_conf.contains(key):
            builder = builder.config(key, value)
    _started = session = builder.getOrCreate()
    activate_session(session)
    if not spark_conf.contains(_LOG_LEVEL):
        _leave_failures_to_the_job(session)
    return session


def _beside(active: SparkSession) -> SparkSession:
    session, given = active.newSession(), active.sparkContext.getConf()
    for key, value in _DEFAULTS.items():
        if not given.contains(key):
            session.conf.set(key, value)
    return session


def _leave_failures_to_the_job(session: SparkSession) -> None:
    if (session.sparkContext.master or "").startswith("local"):
        jvm: Any = SparkContext._jvm
        log4j = jvm.org.apache.logging.log4j
        for name in _LOG_FAILURES:
            log4j.core.config.Configurator.setLevel(name, log4j.Level.OFF)


def _logging_is_sparks() -> bool:
    """Whether log4j has Spark's default configuration, which logs 150 lines of INFO for a job."""
    jvm: Any = SparkContext._jvm
    in_use = jvm.org.apache.logging.log4j.LogManager.getContext(False).getConfiguration().getConfigurationSource()
    return in_use.getLocation() is None or _SPARKS_LOGGING in in_use.getLocation()
