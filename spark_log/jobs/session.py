"""The Spark session of a job. What spark-submit or spark-defaults.conf says wins over what is set here."""

import logging
import os
import sys

from pyspark import SparkConf
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from spark_log import delta_jars
from spark_log.datasource.active_session import activate_session
from spark_log.datasource.source import SparkLogDataSource

_DEFAULTS = {
    # instants print, and are parsed, the same on every machine
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
}


def start_session(name: str, *, delta: bool) -> SparkSession:
    """A session that knows format("spark_log"), and with `delta` format("delta").

    DeltaNotInstalledError if `delta` is asked for and Spark does not have its JARs.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", os.environ["PYSPARK_PYTHON"])
    builder = SparkSession.builder.appName(name)
    given = SparkConf()
    for key, value in {**_DEFAULTS, **(delta_jars.SETTINGS if delta else {})}.items():
        if not given.contains(key):
            builder = builder.config(key, value)
    # what it says, a stack trace as one line of JSON, is told in failures.py
    PySparkLogger.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    session = builder.getOrCreate()
    if delta:
        delta_jars.check_loaded(session)
    activate_session(session)
    session.dataSource.register(SparkLogDataSource)
    return session
