"""Changes in the console: they do what their preview shows, or are refused."""

import json
import re
import socket

import pytest
from typer.testing import CliRunner

from spark_log import Consumer
from spark_log.cli.main import app
from spark_log.clients.admin.audit import record_change
from spark_log.cluster.topics import find_topic
from spark_log.groups.committed_offsets import committed_offsets
from spark_log.registry.registry import Registry
from spark_log.replication.controller.topic_operations import alter_configs
from tests.support.console import commit, running_console
from tests.support.topics import make

pytestmark = pytest.mark.on_sqlite


def rows(console, path):
    facts = console.facts(path)
    return facts["listing"]["rows"]


def previewed(console, path, **form):
    answer = console.client.post(f"/api/v1{path}/preview", data=form)
    assert answer.status_code == 200, answer.text
    return answer.json()


def cli(cluster_address, *arguments):
    result = CliRunner().invoke(app, [*arguments, "--cluster", cluster_address, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


# Changes -------------------------------------------------------------------------------------------------------------


def test_topics_are_created_enlarged_and_deleted_by_name(console, cluster):
    form = {"topic": "new", "partitions": "2", "configs": "retention.ms=1000\r\ncleanup.policy = compact\r\n"}
    assert console.change("/topics", **form).headers["location"] == "/topics/new"
    topic = cluster.store.read(lambda connection: find_topic(connection, "new"))
    assert (topic.partition_count, dict(topic.overrides)) == (
        2, {"retention.ms": "1000", "cleanup.policy": "compact"}
    )  # fmt: skip
    assert console.change("/topics", **form).status_code == 400, "it exists already"
    assert console.change("/topics", topic="other", configs="nonsense").status_code == 400
    assert console.change("/topics/new/partitions", total="5").status_code == 303
    assert console.facts("/topics/new")["partition_count"] == 5
    assert console.change("/topics/new/partitions", total="3").status_code == 400
    assert console.change("/topics/new/delete", confirm="old").status_code == 400
    assert console.change("/topics/new/delete", confirm="new").status_code == 303
    console.page("/topics/new", 404)


def test_a_config_is_previewed_set_and_reset(console, cluster, topics):
    path = "/topics/seen/configs/retention.ms"
    preview = previewed(console, path, value="1000")
    assert (preview["value"], preview["new"], preview["refused"]) == ("604800000", "1000", None)
    assert "retention.ms" in previewed(console, path, value="soon")["refused"]
    assert "would be refused" in console.change(f"{path}/preview", value="soon").text
    assert console.facts(f"{path}?value=1000")["new"] is None, "an address previews nothing"
    form = {"config": "retention.ms", "value": "1000", "expected": "604800000"}
    assert console.change("/topics/seen/configs", **form).status_code == 303
    assert console.change("/topics/seen/configs", **form).status_code == 400, "it is another value now"
    assert console.change("/topics/seen/configs", config="retention.ms", value="soon").status_code == 400
    assert console.change("/topics/seen/configs", config="nothing", value="1").status_code == 400
    assert previewed(console, path, reset="1")["new"] == "604800000"
    assert console.change("/topics/seen/configs", config="retention.ms", reset="1", expected="1000").status_code == 303
    assert cluster.store.read(lambda connection: find_topic(connection, "seen")).overrides == {}
    console.page("/topics/seen/configs/nothing", 404)


def test_a_config_without_a_limit_is_unlimited(console, cluster, topics):
    for path in ("/topics/seen", "/topics/seen/configs/max.compaction.lag.ms"):  # a form has the exact value
        assert "9223372036854775807" not in re.sub(r'(title|value)="[^"]*"', "", console.page(path))
    assert "<strong>unlimited</strong>" in console.change("/topics/seen/configs/retention.ms/preview", value="-1").text
    alter_configs(cluster, "seen", {"retention.ms": "-1"})
    assert re.search(r"retention\.ms</a></td><td><strong>unlimited</strong></td>", console.page("/topics/seen"))
    facts = console.facts("/topics/seen/configs/retention.ms")
    assert facts["value"] == "-1", "the API has the exact value"


def test_a_preview_does_not_ask_the_schema_registry_that_a_user_names(console, cluster):
    schema = '{"type": "record", "name": "r", "fields": [{"name": "n", "type": "long"}]}'
    Registry(cluster).register("s", schema)
    make(cluster, "typed", 1, value_format="avro", value_schema="registry:s", value_framing="confluent")
    path = "/topics/typed/configs/schema.registry.url"
    with socket.create_server(("127.0.0.1", 0)) as registry:
        registry.setblocking(False)
        address = f"http://127.0.0.1:{registry.getsockname()[1]}"
        preview = previewed(console, path, value=address)
        assert (preview["new"], preview["refused"], preview["asks_registry"]) == (address, None, True)
        assert "registry is asked when the change is applied" in console.change(f"{path}/preview", value=address).text
        with pytest.raises(BlockingIOError):
            registry.accept()


def test_configs_of_internal_topics_are_refused(console, cluster):
    record_change(cluster, "ann", "x", "y", {}, "succeeded", "test")
    refused = console.change("/topics/__audit/configs", config="retention.ms", value="1")
    assert refused.status_code == 403 and "internal" in refused.text
    assert console.change("/topics/__audit/configs/retention.ms/preview", value="1").status_code == 403
    topic = cluster.store.read(lambda connection: find_topic(connection, "__audit"))
    assert topic.config.retention_ms > 1


def test_a_hidden_password_is_not_stored_as_it_is_shown(console, cluster):
    address = "http://ann:pass/word@registry.example"
    make(cluster, "typed", 1)
    path = "/topics/typed/configs/schema.registry.url"
    page = console.change(f"{path}/preview", value=address).text
    assert f">{address}</textarea>" in page, "what is applied is what was given"
    form = {"config": "schema.registry.url"}
    assert console.change("/topics/typed/configs", **form, value=address).status_code == 303
    shown = console.facts(path)["value"]
    assert "pass" not in shown and "word" not in shown
    for value in (shown, shown + "/path"):
        assert console.change("/topics/typed/configs", **form, value=value).status_code == 400
        assert "write the secret" in previewed(console, path, value=value)["refused"]


def test_passwords_in_configs_are_hidden(console, cluster):
    make(cluster, "typed", 1, schema_registry_url="http://ann:secret@registry.example:8081")
    for path in ("/topics/typed", "/topics/typed/configs/schema.registry.url"):
        assert "secret" not in console.page(path) and "registry.example" in console.page(path)


RESETS = {
    "to=earliest": (0, 0, 0),
    "to=latest": (5, 1, 0),
    "to=offset&value=2": (2, 1, 0),
    "to=shift&value=-1": (2, 0, None),
    "to=time&value=2020-01-01T00:00:00Z": (0, 0, 0),
    "to=time&value=2100-01-01T00:00:00Z": (5, 1, 0),
}


@pytest.mark.parametrize("query", RESETS)
def test_a_reset_commits_exactly_what_its_preview_shows(console, cluster, topics, query):
    commit(cluster, seen_0=3, seen_1=1)
    partitions = "0,1" if RESETS[query][2] is None else ""
    preview = console.facts(f"/groups/readers/reset?{query}&topic=seen&partitions={partitions}")
    expected = [new for new in RESETS[query] if new is not None]
    assert [row["new"] for row in preview["rows"]] == expected
    assert [row["current"] for row in preview["rows"]][:2] == [3, 1]
    first = preview["rows"][0]
    assert (first["again"], first["skipped"]) == (max(0, 3 - first["new"]), max(0, first["new"] - 3))
    assert committed_offsets(cluster.store, "readers") == {("seen", 0): 3, ("seen", 1): 1}, "a preview changes nothing"
    done = console.change("/groups/readers/reset", offsets=preview["offsets"])
    assert (done.status_code, done.headers["location"]) == (303, "/groups/readers")
    assert [offset for _, offset in sorted(committed_offsets(cluster.store, "readers").items())] == expected


def test_a_reset_that_makes_no_sense_is_refused(console, cluster, topics):
    commit(cluster, seen_0=3)
    for query in (
        "to=offset&value=x", "to=never", "to=shift", "to=shift&value=5&topic=seen",
        "to=earliest&topic=seen&partitions=9",
        "to=earliest&partitions=0", "to=time&value=5", "to=latest&topic=seen&partitions=a", "to=earliest&topic=none",
    ):  # fmt: skip
        assert console.client.get(f"/groups/readers/reset?{query}").status_code in (400, 404), query


def test_a_reset_is_refused_when_something_has_changed_since_its_preview(console, cluster, cluster_address, topics):
    commit(cluster, seen_0=3)
    shown = console.facts("/groups/readers/reset?to=earliest")["offsets"]
    commit(cluster, seen_0=4)
    refused = console.change("/groups/readers/reset", offsets=shown)
    assert refused.status_code == 400 and "offset is 4 now" in refused.text
    shown = console.facts("/groups/readers/reset?to=earliest")["offsets"]
    cli(cluster_address, "topic", "delete-records", "seen", "--before", "0=2", "--yes")
    refused = console.change("/groups/readers/reset", offsets=shown)
    assert refused.status_code == 400 and "outside the log" in refused.text
    assert committed_offsets(cluster.store, "readers") == {("seen", 0): 4}
    for malformed in (
        "",
        "[]",
        "[1]",
        '[["seen", 0, 4]]',
        '[["seen", 0, 4, -1]]',
        '{"a": 1}',
        '[["none", 0, null, 0]]',
    ):
        assert console.change("/groups/readers/reset", offsets=malformed).status_code in (400, 404), malformed


def test_a_reset_is_refused_when_the_group_becomes_active_meanwhile(console, cluster, cluster_address, topics):
    commit(cluster, seen_0=3)
    shown = console.facts("/groups/readers/reset?to=earliest")["offsets"]
    with Consumer("seen", cluster=cluster_address, group_id="readers", enable_auto_commit=False) as consumer:
        consumer.poll(timeout_ms=2000)
        refused = console.change("/groups/readers/reset", offsets=shown)
        assert refused.status_code == 400 and "live members" in refused.text
        page = console.page("/groups/readers/reset?to=earliest")
        assert "stop its consumers first" in page and "Commit these offsets" not in page
        assert console.change("/groups/readers/delete", confirm="readers").status_code == 400
        assert console.change("/groups/readers/delete-offsets", topic="seen").status_code == 400
    assert committed_offsets(cluster.store, "readers")["seen", 0] == 3
    assert console.change("/groups/readers/reset", offsets=shown).status_code == 303


def test_offsets_of_a_topic_and_a_group_are_deleted(console, cluster, topics):
    commit(cluster, seen_0=3, hidden_0=1)
    assert console.change("/groups/readers/delete-offsets", topic="hidden").status_code == 303
    assert committed_offsets(cluster.store, "readers") == {("seen", 0): 3}
    assert console.change("/groups/readers/delete", confirm="other").status_code == 400
    assert console.change("/groups/readers/delete", confirm="readers").headers["location"] == "/groups"
    console.page("/groups/readers", 404)


def test_a_read_only_console_shows_no_forms_for_changes(cluster, topics):
    commit(cluster, seen_0=3)
    with running_console(cluster) as console:
        for path in ("/topics", "/topics/seen", "/topics/seen/configs/retention.ms", "/groups/readers",
                     "/groups/readers/reset?to=earliest"):  # fmt: skip
            forms = [form for form in console.page(path).split("<form")[1:] if 'method="post"' in form.split(">")[0]]
            assert all("favourite" in form or "/logout" in form for form in forms), path
        assert console.change("/topics/seen/configs/retention.ms/preview", value="1").status_code == 403
