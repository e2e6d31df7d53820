"""Runs the loop of `jobs/transform.py`, which consumes, calls the function and produces, in transactions."""

import ctypes
import importlib
import json
import logging
import os
import signal
import sys
import uuid
from dataclasses import asdict
from typing import Any

import pyarrow as pa
from kafka.errors import KafkaError

from spark_log import clock
from spark_log.clients.consume.consumer import Consumer
from spark_log.clients.produce.producer import Producer
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import find_topic
from spark_log.errors import InvalidOptionError, SparkLogError
from spark_log.spark.datasource.options.topic_choice import SubscribePattern
from spark_log.spark.jobs.failures import one_line
from spark_log.spark.jobs.options.transform_options import TransformArguments
from spark_log.spark.jobs.summary import print_lines
from spark_log.spark.streams.transactional_loop import TableTransform, Totals, TransactionalLoop

_PR_SET_PDEATHSIG = 1


def run_guarded(arguments: TransformArguments) -> int:
    """Run the job; print errors of spark-log or kafka-python. Return the exit code. Raises errors of the function."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("spark_log.spark.streams").setLevel(logging.INFO)
    try:
        return run(arguments)
    except (SparkLogError, KafkaError) as error:
        print(f"transform: {one_line(error)}", file=sys.stderr, flush=True)
        return 1


def run(arguments: TransformArguments) -> int:
    """Run the loop. Return the exit code. Raises errors of spark-log, of kafka-python, and of the function."""
    function = None if arguments.work.function is None else load(arguments.work.function)
    _check_topics(arguments)
    with _consumer(arguments) as consumer, _producer(arguments) as producer:
        retries = {} if arguments.run.retries is None else {"retries": arguments.run.retries}
        loop = TransactionalLoop(consumer, producer, **retries)
        _stop_on_signals(loop)
        began_s = clock.monotonic_s()
        if function is None:
            assert arguments.work.to_topic is not None, "parsed so"
            totals = loop.run_arrow(copy_to(arguments.work.to_topic))
        else:
            totals = loop.run_arrow(function) if arguments.work.arrow else loop.run(function)
    print_lines(_summary(totals, clock.monotonic_s() - began_s, arguments.run.json))
    return 0


def load(name: str) -> Any:
    """Import `module:function` from the working folder, or an installed package. Raises InvalidOptionError."""
    module_name, _, function_name = name.partition(":")
    if not module_name or not function_name:
        raise InvalidOptionError(f"--function {name!r}: expected module:function")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise InvalidOptionError(f"--function {name!r}: {error}") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise InvalidOptionError(f"--function {name!r}: {module_name} has no function {function_name!r}")
    return function


def copy_to(topic: str) -> TableTransform:
    """Return a function that copies records to another topic. Their partitions and offsets are new."""

    def copy(table: pa.Table, producer: Producer) -> None:
        producer.send_table(topic, table.select(["key", "value", "timestamp", "headers"]))

    return copy


def _check_topics(arguments: TransformArguments) -> None:
    """Raise UnknownTopicOrPartitionError for a named topic that does not exist."""
    named = [] if isinstance(arguments.topics, SubscribePattern) else [*arguments.topics.topics]
    named += [] if arguments.work.to_topic is None else [arguments.work.to_topic]
    with Cluster.open(arguments.run.cluster) as cluster:
        cluster.store.read(lambda connection: [find_topic(connection, name) for name in named])


def _consumer(arguments: TransformArguments) -> Consumer:
    consumer = Consumer(
        cluster=arguments.run.cluster,
        client_id="transform",
        group_id=arguments.run.group_id,
        enable_auto_commit=False,
        **arguments.run.consumer_settings(),
    )
    topics = arguments.topics
    if isinstance(topics, SubscribePattern):
        consumer.subscribe(pattern=topics.pattern)
    else:
        consumer.subscribe(topics.topics)
    return consumer


def _producer(arguments: TransformArguments) -> Producer:
    transactional_id = arguments.run.transactional_id or f"{arguments.run.group_id}-{uuid.uuid4()}"
    timeout_ms = arguments.run.transaction_timeout_ms
    settings = {} if timeout_ms is None else {"transaction_timeout_ms": timeout_ms}
    return Producer(cluster=arguments.run.cluster, transactional_id=transactional_id, **settings)


def _stop_on_signals(loop: TransactionalLoop) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: loop.stop())
    if "PYSPARK_GATEWAY_PORT" in os.environ and sys.platform == "linux":
        # spark-submit's JVM receives its signals: let this process get SIGTERM when the JVM ends
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _summary(totals: Totals, seconds: float, as_json: bool) -> str:
    if as_json:
        return json.dumps({"event": "summary", "job": "transform", **asdict(totals), "seconds": round(seconds, 3)})
    return f"transform: {totals}, {seconds:.1f} s"
