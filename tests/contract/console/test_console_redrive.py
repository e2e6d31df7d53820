"""The page that redrives dead letters: it copies exactly the letters of its preview, and obeys roles."""

import json

import pytest

from spark_log.clients.admin.audit import read_changes, record_change
from spark_log.console.access.access_file import read_access_file
from spark_log.console.pages import redrive
from spark_log.console.routes import Allow
from spark_log.console.settings import AuthMethod
from spark_log.groups.committed_offsets import committed_offsets
from spark_log.groups.share.administration import alter_group_configs
from spark_log.groups.share.dead_letters import DeadLetters
from spark_log.groups.share.polling import SharePolls
from spark_log.groups.share.reading import ShareReads
from spark_log.groups.share.rules import AcknowledgeType
from spark_log.ids import TopicPartition
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.removal.retention import delete_records
from tests.support.console import running_console
from tests.support.share_members import ShareMember
from tests.support.topics import all_stored, append, make

pytestmark = pytest.mark.on_sqlite

PAGE = "/topics/dlq.jobs/redrive"
PREVIEW = f"{PAGE}?limit=1000"
ROLES = {
    "all": 'role = "operator"',
    "letters only": 'role = "operator"\ntopics = ["dlq.*", "again"]',
    "no offsets": 'role = ["produce"]',
    "no produce": 'role = ["offsets"]',
    "no messages": 'role = "operator"\nmessages = false',
    "no headers": 'role = "operator"\nmasked = ["headers"]',
}


@pytest.fixture
def reject(cluster, log):
    """A function that appends records to topic `jobs`, and rejects them: their letters are in topic `dlq.jobs`."""
    make(cluster, "jobs", 2)
    make(cluster, "again")
    make(cluster, "dlq.jobs", errors_deadletterqueue_group_enable="true")
    configs = {"share.auto.offset.reset": "earliest", "errors.deadletterqueue.topic.name": "dlq.jobs"}
    alter_group_configs(cluster.store, "workers", configs)
    letters = DeadLetters(lambda: ClientLog(cluster))
    member = ShareMember(cluster, ["jobs"], polls=SharePolls(cluster, ShareReads(cluster), dead_letters=letters))

    def append_and_reject(*values, **configs):
        alter_group_configs(cluster.store, "workers", configs)
        for number, value in enumerate(values):
            append(log, "jobs", value, partition=number % 2)
        while acquired := member.poll():
            member.acknowledge(acquired, AcknowledgeType.REJECT)

    yield append_and_reject
    letters.close()


@pytest.fixture
def users(cluster, tmp_path):
    """A function that makes the console's client the user with one of ROLES."""
    groups = [f'[groups."{name}"]\n{role}' for name, role in ROLES.items()]
    path = tmp_path / "access.toml"
    path.write_text("\n".join([*groups, '[header]\nproxies = ["127.0.0.0/8"]\n']))
    settings = {"auth": AuthMethod.HEADER, "access": read_access_file(str(path)), "allow": frozenset(Allow)}
    with running_console(cluster, **settings) as console:

        def user(role):
            console.client.headers |= {"X-Forwarded-User": role, "X-Forwarded-Groups": role}
            return console

        yield user


def form_of(preview):
    return {"letters": preview["letters"], "to": preview["to"], "skip_missing": json.dumps(preview["skip_missing"])}


def redriven(console, preview):
    answer = console.client.post(f"/api/v1{PAGE}", data=form_of(preview))
    assert answer.status_code == 200, answer.text
    return answer.json()


def changes_of(cluster, **filters):
    return read_changes(cluster, target="topic dlq.jobs", action="RedriveDeadLetters", **filters)


def test_letters_are_copied_as_previewed_and_once(console, cluster, reject):
    reject("a", "b", "c")
    for page in ("/topics/dlq.jobs", "/groups/workers"):
        assert f'href="{PAGE}"' in console.page(page)
    assert "/redrive" not in console.page("/topics/jobs")
    assert console.facts(PAGE)["rows"] is None
    preview = console.facts(PREVIEW)
    assert (preview["rows"], preview["missing"], preview["is_complete"]) == ([{"topic": "jobs", "letters": 3}], 0, True)
    assert "3 letters will be copied." in console.page(PREVIEW)
    assert all_stored(cluster, "jobs") == ["a", "b", "c"]
    assert committed_offsets(cluster.store, "redrive-dlq.jobs") == {}
    reject("d")
    answer = console.change(PAGE, **form_of(preview))
    assert (answer.status_code, answer.headers["location"]) == (303, PAGE)
    assert "Copied 3 letters of topic dlq.jobs." in console.page(PAGE)
    assert all_stored(cluster, "jobs") == ["a", "a", "b", "b", "c", "c", "d"]
    again = console.change(PAGE, **form_of(preview))
    assert again.status_code == 400 and "Look again" in again.text
    assert redriven(console, console.facts(PREVIEW)) == {"copied": {"jobs": 1}, "missing": 0, "is_complete": True}
    assert all_stored(cluster, "jobs") == ["a", "a", "b", "b", "c", "c", "d", "d"]
    [*_, change] = changes_of(cluster, outcome="succeeded")
    assert change.source == "console" and change.parameters["letters"] == preview["letters"]
    [failed] = changes_of(cluster, outcome="failed")
    assert "not the next ones" in failed.error


def test_a_limit_leaves_the_other_letters(console, cluster, reject):
    reject("a", "b", "c")
    preview = console.facts(f"{PAGE}?limit=2&to=again")
    assert (preview["rows"], preview["is_complete"]) == ([{"topic": "again", "letters": 2}], False)
    assert "There are more letters" in console.page(f"{PAGE}?limit=2&to=again")
    assert redriven(console, preview)["copied"] == {"again": 2}
    preview = console.facts(f"{PAGE}?limit=2&to=again")
    assert preview["is_complete"] and redriven(console, preview)["copied"] == {"again": 1}
    assert all_stored(cluster, "again") == ["a", "b", "c"]
    assert "Redrive these letters" not in console.page(PREVIEW), "none are left"


def test_letters_without_a_record_are_skipped_on_request_only(console, cluster, reject):
    reject("a", "b", **{"errors.deadletterqueue.copy.record.enable": "false"})
    delete_records(cluster, {TopicPartition("jobs", 1): 1})
    preview = console.facts(PREVIEW)
    assert (preview["copies"], preview["missing"]) == (1, 1)
    assert "1 letter without a record cannot be copied" in console.page(PREVIEW)
    assert "Redrive these letters" not in console.page(PREVIEW)
    assert "jobs-1@0 is gone" in console.change(PAGE, **form_of(preview)).text
    assert "will be skipped" in console.page(f"{PREVIEW}&skip_missing=1")
    preview = console.facts(f"{PREVIEW}&skip_missing=1")
    assert redriven(console, preview) == {"copied": {"jobs": 1}, "missing": 1, "is_complete": True}
    assert console.facts(PREVIEW)["letters"] == "[]"


def test_what_a_request_has_no_time_for_is_left(console, cluster, reject, monkeypatch):
    reject("a")
    preview = console.facts(PREVIEW)
    monkeypatch.setattr(redrive, "_SECONDS_MAX", 0.0)
    assert redriven(console, preview) == {"copied": {}, "missing": 0, "is_complete": False}
    monkeypatch.undo()
    assert redriven(console, preview)["copied"] == {"jobs": 1}
    assert all_stored(cluster, "jobs") == ["a", "a"]


def test_wrong_requests_are_refused(console, cluster, log, reject):
    reject("a")
    letters = console.facts(PREVIEW)["letters"]
    for query, status, text in (
        ("limit=0", 400, "from 1 to 10000"), ("limit=10001", 400, "from 1 to 10000"), ("limit=x", 400, "limit"),
        ("limit=1&to=dlq.jobs", 400, "same topic"), ("limit=1&to=nowhere", 404, "nowhere"),
    ):  # fmt: skip
        assert text in console.facts(f"{PAGE}?{query}", status)["error"], query
    for form, status, text in (
        ({}, 400, "letters"), ({"letters": "[[0, 0]]"}, 400, "letters"), ({"letters": "[]"}, 400, "letters"),
        ({"letters": "[[9, 0, 1]]"}, 400, "Look again"), ({"letters": "[[0, 0, 9]]"}, 400, "Look again"),
        ({"letters": letters, "to": "dlq.jobs"}, 400, "same topic"),
        ({"letters": letters, "to": "nowhere"}, 404, "nowhere"),
        ({"letters": letters, "to": "__audit"}, 400, "internal"),
    ):  # fmt: skip
        answer = console.client.post(f"/api/v1{PAGE}", data=form)
        assert (answer.status_code, text in answer.text) == (status, True), (form, answer.text)
    console.page("/topics/nowhere/redrive", 404)
    append(log, "dlq.jobs", "mine")
    preview = console.facts(PREVIEW)
    assert (preview["copies"], preview["missing"]) == (1, 1)
    answer = console.client.post(f"/api/v1{PAGE}", data={"letters": preview["letters"]})
    assert (answer.status_code, "is not a dead letter" in answer.text) == (400, True)
    assert console.facts(f"{PREVIEW}&to=again")["copies"] == 2
    assert all_stored(cluster, "jobs") == ["a"]
    with running_console(cluster, allow=frozenset({Allow.PRODUCE})) as other:
        assert "does not let you redrive" in other.page(PAGE)
        assert "without --allow offsets" in other.change(PAGE, letters=letters).text


@pytest.mark.parametrize("role", ["no offsets", "no produce", "no messages", "no headers"])
def test_a_role_without_a_right_copies_nothing(users, cluster, reject, role):
    reject("a")
    letters = users("all").facts(PREVIEW)["letters"]
    user = users(role)
    user.page(PAGE)
    assert user.facts(PREVIEW, 403)["error"]
    assert user.change(PAGE, letters=letters).status_code == 403
    assert all_stored(cluster, "jobs") == ["a"]
    [refused] = changes_of(cluster)
    assert (refused.who, refused.outcome) == (role, "refused")


def test_letters_of_hidden_topics_are_not_copied_to_them_or_read_from_them(users, cluster, reject):
    reject("a", "b")
    letters = users("all").facts(PREVIEW)["letters"]
    record_change(cluster, "x", "RedriveDeadLetters", "topic dlq.jobs", {"to": "jobs"}, "failed", "cli", "jobs-0@0")
    user = users("letters only")
    assert "that your role does not show" in user.facts(PREVIEW, 403)["error"]
    assert user.change(PAGE, letters=letters).status_code == 403
    assert user.change(PAGE, letters=letters, to="jobs").status_code == 404
    assert users("all").facts(PREVIEW)["letters"] == letters
    preview = users("letters only").facts(f"{PREVIEW}&to=again")
    assert redriven(user, preview)["copied"] == {"again": 2}, "whole letters are in a topic that the role shows"
    changes = user.facts("/audit")["changes"]
    assert [change["outcome"] for change in changes] == ["succeeded", "failed", "refused", "failed"]
    assert "jobs" not in json.dumps(changes).replace("dlq.jobs", "")
    reject("c", **{"errors.deadletterqueue.copy.record.enable": "false"})
    assert "that your role does not show" in user.facts(f"{PREVIEW}&to=again", 403)["error"]
    assert all_stored(cluster, "jobs") == ["a", "b", "c"]
