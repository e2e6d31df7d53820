"""Sets the active Spark session of a thread that writes. Driver."""

from typing import Any

from pyspark.sql import SparkSession


def activate_session(spark: SparkSession) -> None:
    """Make `spark` the active session of the calling thread, unless the thread has one.

    `write.format("spark_log")` and `writeStream.format("spark_log")` need an active session: Spark searches for a
    Python data source in the active session of the thread, and raises DATA_SOURCE_NOT_FOUND if there is none. Only the
    thread that created the session and the threads of foreachBatch have one. Other threads call this before they write:

        ThreadPoolExecutor(8, initializer=activate_session, initargs=(spark,))

    Does nothing for a session of Spark Connect, whose server activates it.
    """
    if isinstance(spark, SparkSession) and SparkSession.getActiveSession() is None:
        jvm: Any = spark._jvm
        jvm.org.apache.spark.sql.SparkSession.setActiveSession(spark._jsparkSession)
