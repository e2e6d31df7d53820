"""Checks arguments of a job before Spark starts, so that wrong ones fail at once, with one line."""

import glob
import os
from collections.abc import Iterable, Mapping
from urllib.parse import unquote, urlsplit

from sqlalchemy import Connection

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import Topic, find_topics, unknown_topic
from spark_log.errors import InvalidOptionError, TopicAlreadyExistsError, UnknownTopicOrPartitionError
from spark_log.facts.topics import describe_topics
from spark_log.ids import TopicPartition
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.spark.jobs.options.job_arguments import NewTopic


def check_paths(paths: Iterable[str], environ: Mapping[str, str]) -> None:
    """Raise InvalidOptionError if no file matches a local path or glob.

    If Hadoop is configured, paths without a scheme are not checked, because only Spark knows their file system.
    """
    for path in paths:
        local = _local(path, environ)
        if local is not None and not glob.glob(local):
            raise InvalidOptionError(f"no file matches {path!r} (looked from {os.getcwd()})")


def check_new_folder(path: str, environ: Mapping[str, str]) -> None:
    """Raise InvalidOptionError for a local folder that is not empty."""
    local = _local(path, environ)
    if local is not None and os.path.isdir(local) and os.listdir(local):
        raise InvalidOptionError(f"{path!r} is not empty: choose --mode append or overwrite, or a new folder")


def find_or_create(cluster: Cluster, name: str, new: NewTopic | None, option: str = "") -> Topic:
    """Return the topic. Create it if it does not exist and `new` is given.

    Raises UnknownTopicOrPartitionError, with advice to use `spark-log topic create`, or the job's `option`.
    """

    def find(connection: Connection) -> Topic | UnknownTopicOrPartitionError:
        advice = f" (make it with `spark-log topic create {name}`{option and f' or {option}'})"
        return find_topics(connection, [name]).get(name) or unknown_topic(connection, name, advice)

    topic_or_error = cluster.store.read(find)
    if isinstance(topic_or_error, Topic):
        return topic_or_error
    if new is None:
        raise topic_or_error
    try:
        return create_topic(cluster, name, new.partitions, new.replication_factor, new.configs)
    except TopicAlreadyExistsError:  # another process was faster, or the name collides with another topic's
        topic_or_error = cluster.store.read(find)
        if isinstance(topic_or_error, Topic):
            return topic_or_error
        raise


def end_offsets(cluster: Cluster, topics: Iterable[str]) -> dict[TopicPartition, int]:
    """Return the high watermark of each partition."""
    return {
        TopicPartition(found.topic.name, part.partition): part.high_watermark
        for found in describe_topics(cluster, list(topics))
        for part in found.partitions
    }


def _local(path: str, environ: Mapping[str, str]) -> str | None:
    scheme, separator, _ = path.partition("://")
    if path.startswith("file:"):
        return unquote(urlsplit(path).path)
    if separator and scheme.isalnum():
        return None
    return None if environ.get("HADOOP_CONF_DIR") else path
