"""The errors of spark-log, in files by subject. Class names are kafka-python's wherever Kafka has the error."""

from spark_log.errors.base import *
from spark_log.errors.base import SparkLogError
from spark_log.errors.calls import *
from spark_log.errors.groups import *
from spark_log.errors.producers import *
from spark_log.errors.records import *
from spark_log.errors.stores import *
from spark_log.errors.texts import *
from spark_log.errors.topics import *

for _each in [*globals().values()]:
    if isinstance(_each, type) and issubclass(_each, SparkLogError):
        _each.__module__ = __name__  # the name that programs import, in tracebacks and in Spark's messages
