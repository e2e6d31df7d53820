"""Arguments of `jobs/mirror.py`, and the errors for invalid ones."""

import pytest

from spark_log.spark.datasource.options.topic_choice import SubscribePattern, SubscribeTopics
from spark_log.spark.jobs.mirror import JOB
from spark_log.spark.jobs.options.job_arguments import MirrorArguments
from spark_log.spark.jobs.options.run_options import AvailableNow, Every
from spark_log.spark.mirror.mirror_topics import MirrorSettings

BASE = ["--cluster", "a", "--to-cluster", "b"]


def test_arguments():
    settings = MirrorSettings(SubscribeTopics(("x", "y")))
    assert JOB.parse([*BASE, "--subscribe", "x, y,x"]) == MirrorArguments(
        "a", "b", settings, AvailableNow(), False, False
    )
    words = "--to-cluster b --subscribe-pattern ^x --prefix m. --create-topics --replication-factor 2 --groups --json"
    more = ["--trigger", "10 s", "--max-offsets-per-trigger", "50", "--allow-data-loss"]
    settings = MirrorSettings(SubscribePattern("^x"), "m.", True, 2, 50, True)
    expected = MirrorArguments("a", "b", settings, Every(10_000), True, True)
    assert JOB.parse([*words.split(), *more, "--cluster", "a"]) == expected
    assert "password" not in repr(
        JOB.parse(["--cluster", "postgresql://u:password@h/d", *BASE[2:], "--subscribe", "x"])
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--cluster", "a", "--subscribe", "x"], "--to-cluster"),
        (BASE, "--subscribe or --subscribe-pattern: one is needed"),
        ([*BASE, "--subscribe", "x", "--subscribe-pattern", "y"], "not allowed with"),
        ([*BASE, "--subscribe", "a/b"], "'a/b'"),
        ([*BASE, "--subscribe-pattern", "("], "not a regular expression"),
        ([*BASE, "--subscribe", "x", "--trigger", "soon"], "--trigger"),
        ([*BASE, "--subscribe", "x", "--max-offsets-per-trigger", "0"], "greater than or equal to 1"),
        ([*BASE, "--subscribe", "x", "--replication-factor", "2"], "only with --create-topics"),
    ],
)
def test_wrong_usage_names_the_argument(arguments, said, refused):
    assert said in refused(JOB.parse, arguments)
