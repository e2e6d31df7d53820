"""What a role hides is on no page, in no JSON and in no download: checked for every route of the table."""

import pytest

from spark_log import Producer
from spark_log.clients.admin.audit import record_change
from spark_log.console.access.access_file import read_access_file
from spark_log.console.app import table
from spark_log.console.paths import encode_segment, url
from spark_log.facts.metrics.history import Kind
from spark_log.facts.metrics.recorded_topics import METRICS, Recorded
from spark_log.maintenance.recorded_appends import append_records
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.console import EXAMPLES, TOPIC, hostile_cluster, running_console

MARKS = ("mark-of-a-key", "mark-of-a-value", "mark-of-a-header", "mark-of-a-field")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with hostile_cluster(tmp_path_factory.mktemp("hostile")) as cluster:
        create_topic(cluster, "seen", 1, 1)
        value = b'{"secret": "mark-of-a-field", "other": "mark-of-a-value"}'
        with Producer(cluster=str(cluster.store.address)) as producer:
            for topic in (TOPIC, "seen"):
                headers = [("h", b"mark-of-a-header")]
                for _ in range(4):
                    producer.send(topic, value, b"mark-of-a-key", headers=headers, partition=0)
        record_change(
            cluster, "ann", "/topics/{topic}/configs", f"topic {TOPIC}", {"topic": TOPIC}, "succeeded", "console"
        )
        fields = {
            "kind": "task", "name": "merge", "lease": "c", "start_ms": cluster.store.now().wall_ms, "seconds": 1.0,
            "outcome": "failed", "error": f"topic {TOPIC}", "notes": f"{TOPIC}: 1 file",
        }  # fmt: skip
        append_records(cluster, METRICS, [Recorded(int(Kind.TASK), "merge", fields)])
        yield cluster


@pytest.fixture
def answers(cluster, tmp_path):
    """A function: for a user with this role, each path of the table and the text of its answer."""

    def fetch(role, **names):
        (tmp_path / "access.toml").write_text(f'[groups."*"]\n{role}\n')
        paths = [url(route.path, **{**EXAMPLES, **names}) for route in (*table().views, *table().streams)]
        with running_console(cluster, access=read_access_file(str(tmp_path / "access.toml"))) as console:
            for path in (*paths, *(f"/api/v1{path}" for path in paths)):
                answer = console.client.get(path)
                assert answer.status_code in (200, 400, 403, 404), (path, answer.status_code, answer.text)
                yield path, answer.text

    return fetch


@pytest.mark.slow
def test_a_topic_that_no_pattern_matches_is_nowhere(answers):
    assert sum(TOPIC in text for path, text in answers("") if TOPIC not in path) >= 12, "others see it on many pages"
    asked = (TOPIC, encode_segment(TOPIC))
    for path, text in answers('topics = ["seen", "empty"]'):
        own = text.count(TOPIC) if any(name in path for name in asked) and "there is no topic" in text else 0
        assert text.count(TOPIC) == own, path
        assert own <= 1, path


@pytest.mark.parametrize("topic", ["seen", TOPIC])
def test_without_messages_no_key_value_or_header_is_anywhere(answers, topic):
    for path, text in answers("messages = false", topic=topic):
        assert [mark for mark in MARKS if mark in text] == [], path


def test_a_masked_field_is_nowhere_and_the_others_are_shown(answers):
    found = dict(answers('masked = ["value.secret", "key", "headers.h"]', topic="seen", part="value"))
    for path, text in found.items():
        assert [mark for mark in ("mark-of-a-field", "mark-of-a-key", "mark-of-a-header") if mark in text] == [], path
    assert "mark-of-a-value" in found["/topics/seen/messages"]
    assert "mark-of-a-value" in found["/topics/seen/messages.ndjson"]
