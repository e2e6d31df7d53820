"""What `jobs/mirror.py` understands, and what it says to what it does not."""

import pytest

from spark_log.datasource.subscription import SubscribePattern, SubscribeTopics
from spark_log.jobs.arguments import AvailableNow, Every
from spark_log.jobs.mirror_arguments import MirrorArguments, parse
from spark_log.streams.mirror import MirrorSettings

BASE = ["--cluster", "a", "--to-cluster", "b"]


def test_the_least_and_the_most():
    settings = MirrorSettings(SubscribeTopics(("x", "y")))
    assert parse([*BASE, "--subscribe", "x, y,x"], {}) == MirrorArguments(
        "a", "b", settings, AvailableNow(), False, False
    )
    words = "--to-cluster b --subscribe-pattern ^x --prefix m. --create-topics --replication-factor 2 --groups --json"
    more = ["--trigger", "10 s", "--max-offsets-per-trigger", "50", "--allow-data-loss"]
    settings = MirrorSettings(SubscribePattern("^x"), "m.", True, 2, 50, True)
    expected = MirrorArguments("a", "b", settings, Every("10 seconds"), True, True)
    assert parse([*words.split(), *more], {"SPARK_LOG_CLUSTER": "a"}) == expected
    assert "password" not in repr(
        parse(["--cluster", "postgresql://u:password@h/d", *BASE[2:], "--subscribe", "x"], {})
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--to-cluster", "b", "--subscribe", "x"], "--cluster: needed"),
        (["--cluster", "a", "--subscribe", "x"], "--to-cluster"),
        (BASE, "--subscribe --subscribe-pattern is required"),
        ([*BASE, "--subscribe", "x", "--subscribe-pattern", "y"], "not allowed with"),
        ([*BASE, "--subscribe", "a/b"], "'a/b'"),
        ([*BASE, "--subscribe-pattern", "("], "not a regular expression"),
        ([*BASE, "--subscribe", "x", "--trigger", "soon"], "--trigger"),
        ([*BASE, "--subscribe", "x", "--max-offsets-per-trigger", "0"], "whole number from 1"),
        ([*BASE, "--subscribe", "x", "--replication-factor", "2"], "only with --create-topics"),
    ],
)
def test_wrong_usage_names_the_argument(arguments, said, capsys):
    with pytest.raises(SystemExit) as raised:
        parse(arguments, {})
    assert raised.value.code == 2
    assert said in capsys.readouterr().err
