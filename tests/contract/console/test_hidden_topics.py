"""Pages of the console for users who see some topics only."""

import json
from contextlib import ExitStack

import pytest

from spark_log import Producer
from spark_log.clients.admin.audit import record_change
from spark_log.cluster.topics import list_topics
from spark_log.console.access.access_file import read_access_file
from spark_log.console.pages import audit
from spark_log.console.paths import url
from spark_log.console.routes import Allow
from spark_log.console.settings import AuthMethod
from spark_log.facts.metrics.history import Kind
from spark_log.facts.metrics.recorded_topics import METRICS, Recorded
from spark_log.groups.share.administration import alter_group_configs
from spark_log.maintenance.recorded_appends import append_records
from tests.support.console import commit, running_console
from tests.support.share_members import ShareMember

pytestmark = pytest.mark.on_sqlite


ACCESS = """
[groups.some]
role = "operator"
topics = ["seen*"]
[header]
proxies = ["127.0.0.0/8"]
"""


@pytest.fixture
def restricted(cluster, tmp_path):
    """The console of a user who may change everything of topics `seen*`, and sees no others."""
    path = tmp_path / "access.toml"
    path.write_text(ACCESS)
    settings = {"auth": AuthMethod.HEADER, "access": read_access_file(str(path)), "allow": frozenset(Allow)}
    with running_console(cluster, **settings) as console:
        console.client.headers |= {"X-Forwarded-User": "ann", "X-Forwarded-Groups": "some"}
        yield console


def rows(console, path):
    facts = console.facts(path)
    return facts["listing"]["rows"]


# Roles ---------------------------------------------------------------------------------------------------------------


def test_hidden_topics_are_nowhere(restricted, cluster, cluster_address, topics):
    commit(cluster, "both", seen_0=1, hidden_0=1)
    commit(cluster, "only-hidden", hidden_0=1)
    alter_group_configs(cluster.store, "shared", {"errors.deadletterqueue.topic.name": "hidden"})
    ShareMember(cluster, ["seen", "hidden"], "shared")
    ShareMember(cluster, ["hidden"], "share-of-hidden")
    record_change(cluster, "x", "/topics/{topic}/configs", "topic hidden", {}, "succeeded", "x")
    record_change(cluster, "x", "/topics", "", {"topic": "hidden"}, "succeeded", "x")
    record_change(cluster, "x", "/groups/{group}/reset", "group both", {"offsets": "hidden"}, "failed", "x", "hidden-0")
    with Producer(cluster=cluster_address, transactional_id="t") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("seen", b"x", partition=1).get(60)
        producer.send("hidden", b"x", partition=0).get(60)
        paths = ["/topics?internal=1", "/topics/seen", "/groups", "/groups/both", "/groups/both/reset?to=earliest",
                 "/groups/shared", "/groups/shared/reset?to=latest",
                 "/transactions", "/transactions/t", "/brokers", "/maintenance", "/queries", "/audit"]  # fmt: skip
        for path in paths:
            assert "hidden" not in json.dumps(restricted.facts(path)).replace("hidden_", ""), path
            assert ">hidden" not in restricted.page(path), path
        producer.abort_transaction()
    assert [row["group"] for row in rows(restricted, "/groups")] == ["both", "shared"]
    for path in (
        "/topics/hidden",
        "/topics/hidden/throughput",
        "/groups/only-hidden",
        "/groups/share-of-hidden",
        "/groups/both/reset?to=latest&topic=hidden",
    ):
        restricted.page(path, 404)
    assert restricted.facts("/groups/both")["lag"] == 4
    assert restricted.change("/topics/hidden/delete", confirm="hidden").status_code == 404
    assert restricted.change("/topics", topic="hidden2").status_code == 403
    assert restricted.change("/groups/both/delete", confirm="both").status_code == 403
    assert restricted.change("/groups/shared/delete", confirm="shared").status_code == 403
    form = {"config": "share.delivery.count.limit", "value": "3"}
    assert restricted.change("/groups/shared/configs", **form).status_code == 403
    assert restricted.change("/groups/both/reset", offsets='[["hidden", 0, 1, 0]]').status_code == 404
    assert restricted.change("/topics", topic="seen2").status_code == 303
    assert {topic.name for topic in list_topics(cluster)} >= {"seen", "seen2", "hidden"}


def test_a_restricted_user_sees_transactions_of_seen_topics_only(restricted, cluster, cluster_address, topics):
    writers = {"of seen": "seen", "of hidden": "hidden", "ended": "seen"}
    with ExitStack() as stack:
        for name, topic in writers.items():
            producer = stack.enter_context(Producer(cluster=cluster_address, transactional_id=name))
            producer.init_transactions()
            producer.begin_transaction()
            producer.send(topic, b"x", partition=0).get(60)
            if name == "ended":
                producer.commit_transaction()
        facts = restricted.facts("/transactions")
        assert (facts["open"], [row["transactional_id"] for row in facts["listing"]["rows"]]) == (1, ["of seen"])
        assert restricted.facts("/transactions?state=CompleteCommit")["listing"]["rows"] == []
        assert restricted.facts(url("/transactions/{id}", id="of seen"))["records"] == 1
        for name in ("of hidden", "ended"):
            restricted.page(url("/transactions/{id}", id=name), 404)
        assert restricted.facts("/")["open_transactions"] is None
        assert "Open transactions" not in restricted.page("/")


def test_a_restricted_user_sees_changes_of_seen_topics_and_groups_only(restricted, cluster, topics, monkeypatch):
    monkeypatch.setattr(audit, "LIMIT", 2)
    commit(cluster, "both", seen_0=1, hidden_0=1)
    commit(cluster, "only-hidden", hidden_0=1)
    changes = [
        ("/topics/{topic}/configs", "topic seen", {"value": "1"}),
        ("/topics/{topic}/configs", "topic hidden", {"value": "1"}),
        ("/groups/{group}/reset", "group both", {"offsets": "hidden"}),
        ("/groups/{group}/reset", "group only-hidden", {}),
        ("/groups/{group}/delete", "group gone", {}),
        ("/brokers", "broker 1", {}),
        ("/topics", "", {"topic": "hidden"}),
    ]
    for number, (action, target, parameters) in enumerate(changes):
        record_change(cluster, f"user {number}", action, target, parameters, "failed", "x", "error of hidden")
    facts = restricted.facts("/audit")
    assert [(each["who"], each["parameters"], each["error"]) for each in facts["changes"]] == [
        ("user 2", {}, None), ("user 0", {"value": "1"}, "error of hidden"),
    ]  # fmt: skip
    assert facts["older_ms"] == facts["changes"][-1]["time_ms"]
    for query in ("who=user+1", "target=group+only-hidden", "outcome=failed&who=user+5"):
        facts = restricted.facts(f"/audit?{query}")
        assert (facts["changes"], facts["older_ms"]) == ([], None), query


def test_reports_of_spark_queries_are_for_users_who_see_all_topics(restricted, cluster):
    report = {"name": "q-1", "query_name": "prices", "run_id": "r", "state": "running", "lag": 7}
    append_records(cluster, METRICS, [Recorded(int(Kind.QUERY), "q-1", report)])
    with running_console(cluster) as console:
        assert [row["query_name"] for row in rows(console, "/queries")] == ["prices"]
    assert rows(restricted, "/queries") == []
    assert "prices" not in restricted.page("/queries")
    for path in ("/queries/q-1", "/queries/q-1/lag"):
        restricted.page(path, 404)
