"""Spark drivers in separate processes that share the JVM of the tests, so that a test can kill one within seconds.

A PySpark driver is a Python process and a JVM. The product's part of it runs in the Python process, which dies at a
failpoint; its streaming queries then fail in the JVM. Tests that kill the JVM too start a driver of their own.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession


@contextmanager
def gateway(spark: SparkSession) -> Iterator[tuple[str, str]]:
    """Arguments of `connect` for other processes, one at a time; a second gateway into the JVM of `spark`."""
    server = spark._jvm.org.apache.spark.api.python.Py4JServer(spark.sparkContext._jsc.sc().conf())  # type: ignore[union-attr]
    server.start()
    try:
        yield str(server.getListeningPort()), server.secret()
    finally:
        server.shutdown()


def connect(port: str, secret: str, **settings: str) -> SparkSession:
    """A session of this process's own in the JVM; settings have `_` for `.` in their names."""
    os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"] = port, secret
    java = launch_gateway()  # type: ignore[no-untyped-call]
    SparkContext._ensure_initialized(gateway=java)
    scala_context = java.jvm.org.apache.spark.SparkContext.getOrCreate()
    context = SparkContext(
        conf=SparkConf(_jconf=scala_context.conf()),
        gateway=java,
        jsc=java.jvm.JavaSparkContext.fromSparkContext(scala_context),
    )
    shared = java.jvm.org.apache.spark.sql.classic.SparkSession.builder().sparkContext(scala_context).getOrCreate()
    session = SparkSession(context, shared.newSession())
    for name, value in settings.items():
        session.conf.set(name.replace("_", "."), value)
    return session
