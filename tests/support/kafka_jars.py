"""The JARs of a Kafka broker and of Spark's Kafka connector, fetched once by Spark's resolver into the environment."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from spark_log.spark.delta_jars import spark_jars_folder

KAFKA_VERSION = "4.4.0"
"""Version of the broker, its tools, and Kafka's Java clients that tests and benchmarks compare with."""
BROKER = (f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}", f"org.apache.kafka:kafka-tools:{KAFKA_VERSION}")
"""The broker, and Kafka's command line tools."""
STREAMS = (f"org.apache.kafka:kafka-streams:{KAFKA_VERSION}",)
CONNECT_FILE_VERSION = "4.3.1"
"""Version of the connectors of files, for the worker of Kafka Connect that the tools bring. Maven Central has none of
version 4.4.0."""
CONNECT_FILE = (f"org.apache.kafka:connect-file:{CONNECT_FILE_VERSION}",)
DEBEZIUM_VERSION = "3.6.1.Final"
DEBEZIUM = (f"io.debezium:debezium-connector-postgres:{DEBEZIUM_VERSION}",)
CONNECTOR = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.2",
)
_SPARK_HAS = "org.apache.hadoop:*,org.scala-lang*:*,org.slf4j:*,com.google.code.findbugs:*"
"""Dependencies of the connector that Spark has already."""


def broker_class_path() -> str:
    """Class path of the broker and its tools, for `java -cp`."""
    [scala] = spark_jars_folder().glob("scala-library-*.jar")  # the resolver leaves out what Spark itself brings
    return f"{_folder(f'broker-{KAFKA_VERSION}', BROKER, '')}/*:{scala}"


def applications_class_path() -> str:
    """Class path of Kafka Connect with its connectors of files, and of Kafka Streams.

    The dependencies of the connectors come last: they have a class that newer clients do not have any more.
    """
    streams = _folder(f"streams-{KAFKA_VERSION}", STREAMS, "org.apache.kafka:kafka-clients")
    files = _folder(f"connect-file-{CONNECT_FILE_VERSION}", CONNECT_FILE, "")
    return f"{streams}/*:{broker_class_path()}:{files}/*"


def debezium_class_path() -> str:
    """Class path of Debezium's connector for PostgreSQL, for a worker of Kafka Connect."""
    return f"{_folder(f'debezium-{DEBEZIUM_VERSION}', DEBEZIUM, 'org.apache.kafka:*,org.slf4j:*')}/*"


def connector_jars() -> str:
    """The connector's files, for the setting `spark.jars`."""
    return ",".join(str(file) for file in sorted(_folder("connector", CONNECTOR, _SPARK_HAS).glob("*.jar")))


def _folder(name: str, packages: tuple[str, ...], excluded: str) -> Path:
    target = Path(sys.prefix) / "kafka" / name
    if target.is_dir():
        return target
    target.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        program = Path(scratch) / "nothing.py"  # spark-submit resolves packages before it runs a program
        program.write_text("")
        command = [str(spark_jars_folder().parent / "bin" / "spark-submit"), "--master", "local[1]"]
        command += ["--packages", ",".join(packages), "--exclude-packages", excluded]
        command += ["--conf", f"spark.jars.ivy={scratch}/ivy", str(program)]
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"Kafka's JARs could not be fetched:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
        shutil.move(f"{scratch}/ivy/jars", target)
    return target
