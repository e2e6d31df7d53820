"""Clusters between which tests mirror topics."""

import shutil

import pytest

from spark_log.cluster.brokers import add_broker
from spark_log.cluster.cluster import Cluster
from spark_log.replication.controller.topic_operations import alter_configs
from spark_log.spark.datasource.options.topic_choice import SubscribeTopics
from spark_log.spark.mirror.mirror import Mirror
from spark_log.spark.mirror.mirror_topics import MirrorSettings
from tests.support.mirroring import make_source


@pytest.fixture(scope="module")
def source_template(tmp_path_factory):
    """The folder of a source, to be copied."""
    folder = tmp_path_factory.mktemp("template") / "source"
    with Cluster.init(str(folder)) as source:
        make_source(source)
        alter_configs(source, "t", {"delta.max.lag.ms": "-1"})  # of the target's too: its open log seals no tails
    return folder


@pytest.fixture
def source(source_template, tmp_path):
    shutil.copytree(source_template, tmp_path / "source")
    with Cluster.open(str(tmp_path / "source")) as source:
        yield source


@pytest.fixture
def target(cluster_address, tmp_path):
    """Two brokers; once on SQLite, once on PostgreSQL."""
    with Cluster.init(cluster_address, log_dir=str(tmp_path / "d1")) as target:
        add_broker(target, 2, [str(tmp_path / "d2")])
        yield target


@pytest.fixture
def mirrors():
    """A function that creates mirrors of topic t; they are closed at the end."""
    made = []

    def make(source, target, topics=None, **settings):
        chosen = topics or SubscribeTopics(("t",))
        made.append(Mirror(source, target, MirrorSettings(chosen, **{"create": True, **settings})))
        return made[-1]

    yield make
    for mirror in made:
        mirror.close()
