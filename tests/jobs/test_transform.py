"""Arguments of `jobs/transform.py`, the errors for invalid ones, and the functions that it finds."""

import pytest

from spark_log.errors import InvalidOptionError
from spark_log.spark.datasource.options.topic_choice import SubscribePattern, SubscribeTopics
from spark_log.spark.jobs.queries.transform_loop import load
from spark_log.spark.jobs.transform import JOB

BASE = ["--cluster", "a", "--group-id", "g"]


def test_arguments(tmp_path):
    given = JOB.parse([*BASE, "--subscribe", "x, y", "--to-topic", "z"])
    assert (given.topics, given.work.to_topic) == (SubscribeTopics(("x", "y")), "z")
    assert (given.run.cluster, given.run.group_id) == ("a", "g")
    assert given.run.consumer_settings() == {"auto_offset_reset": "earliest"}
    (tmp_path / "c.toml").write_text('subscribe-pattern = "^x"\narrow = true\nmax-poll-records = 10\ngroup-id = "h"\n')
    words = f"--config {tmp_path}/c.toml --group-id g --function m:f --transactional-id t --auto-offset-reset latest"
    more = "--transaction-timeout-ms 30 --consumer-timeout-ms 40 --session-timeout-ms 600 --retries 2 --json"
    given = JOB.parse(f"{words} {more} --cluster a".split())
    assert (given.topics, given.work.function, given.work.arrow) == (SubscribePattern("^x"), "m:f", True)
    run = given.run
    assert (run.group_id, run.transactional_id, run.transaction_timeout_ms) == ("g", "t", 30)
    assert (run.retries, run.json) == (2, True)
    consumer = {"auto_offset_reset": "latest", "max_poll_records": 10, "consumer_timeout_ms": 40}
    assert run.consumer_settings() == {**consumer, "session_timeout_ms": 600, "heartbeat_interval_ms": 200}
    secret = ["--cluster", "postgresql://u:password@h/d", *BASE[2:], "--subscribe", "x", "--to-topic", "y"]
    assert "password" not in repr(JOB.parse(secret))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--cluster", "a", "--subscribe", "x", "--to-topic", "y"], "--group-id"),
        ([*BASE, "--to-topic", "y"], "--subscribe or --subscribe-pattern: one is needed"),
        ([*BASE, "--subscribe", "x"], "--function or --to-topic: one is needed"),
        ([*BASE, "--subscribe", "x", "--to-topic", "y", "--function", "m:f"], "not allowed with"),
        ([*BASE, "--subscribe", "x", "--to-topic", "y", "--arrow"], "--arrow: only with --function"),
        ([*BASE, "--subscribe", "x", "--to-topic", "a/b"], "a/b"),
        ([*BASE, "--subscribe", "x,y", "--to-topic", "y"], "would read its own output"),
        ([*BASE, "--subscribe-pattern", "y", "--to-topic", "xyz"], "would read its own output"),
        ([*BASE, "--subscribe", "x", "--to-topic", "y", "--retries", "0"], "greater than or equal to 1"),
    ],
)
def test_wrong_usage_names_the_argument(arguments, said, refused):
    assert said in refused(JOB.parse, arguments)


def test_functions_are_loaded_from_the_working_folder_or_installed_modules(tmp_path, monkeypatch):
    (tmp_path / "billing_functions.py").write_text("def bill(records, producer): ...\nprice = 3\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))  # so that it is taken back afterwards
    assert load("billing_functions:bill").__name__ == "bill"
    assert load("json:dumps")([1]) == "[1]"
    for name, said in (
        ("bill", "expected module:function"),
        ("no_such_module:f", "No module named 'no_such_module'"),
        ("billing_functions:price", "has no function 'price'"),
        ("billing_functions:", "expected module:function"),
    ):
        with pytest.raises(InvalidOptionError, match=said):
            load(name)
