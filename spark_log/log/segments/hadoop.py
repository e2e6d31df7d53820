"""Checks for Hadoop's file systems, which Spark's own readers need for files that are not in a local folder."""

from collections.abc import Iterable
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from spark_log.errors import InvalidConfigurationError

_S3A = (
    "spark-submit --packages org.apache.hadoop:hadoop-aws:{hadoop} (or spark.jars.packages). Its settings are"
    " spark.hadoop.fs.s3a.access.key and .secret.key, unless AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are set, and"
    " for a server of your own spark.hadoop.fs.s3a.endpoint=http://host:port, .path.style.access=true"
)
_AZURE = "spark-submit --packages org.apache.hadoop:hadoop-azure:{hadoop} (or spark.jars.packages)"
_TO_DO = {"s3a": _S3A, "abfs": _AZURE, "abfss": _AZURE, "gs": "spark-submit --jars with Google's gcs-connector"}


def check_file_systems(spark: SparkSession, files: Iterable[str]) -> None:
    """Raise InvalidConfigurationError, with the package to install, if Spark lacks the file system of a file."""
    schemes = {scheme for scheme, separator, _ in (file.partition("://") for file in files) if separator}
    if not schemes or is_remote():
        return
    jvm: Any = spark.sparkContext._jvm
    hadoop = jvm.org.apache.hadoop
    for scheme in sorted(schemes):
        try:
            hadoop.fs.FileSystem.getFileSystemClass(scheme, spark.sparkContext._jsc.hadoopConfiguration())
        except Py4JJavaError:
            to_do = _TO_DO.get(scheme, "put the JAR of one on its class path (spark.jars)")
            raise InvalidConfigurationError(
                f"Spark has no file system for {scheme}:// on its class path, which this read needs"
                f' (format("spark_log") does not): {to_do.format(hadoop=hadoop.util.VersionInfo.getVersion())}'
            ) from None
