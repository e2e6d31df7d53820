"""Logins in progress at a provider, and the sessions that they begin."""

import pytest
from starlette.requests import Request
from starlette.responses import Response

from spark_log.console.access.logins import LOGIN_S_MAX, Logins
from spark_log.console.access.roles import Role, User
from spark_log.console.access.sessions import Sessions


def test_a_login_is_finished_once_by_its_browser_however_many_others_begin():
    logins = Logins()
    login = logins.begin("/topics?q=a")
    sealed = logins.seal(login)
    others = [logins.seal(logins.begin("/")) for _ in range(2_000)]
    for cookie in ("", "x", others[0], sealed[:-4] + "AAAA", Logins().seal(login)):
        assert logins.finish(cookie, login.state) is None
    assert logins.finish(sealed, login.state + "x") is None
    assert logins.finish(sealed, login.state) == login
    assert logins.finish(sealed, login.state) is None
    assert login.verifier not in sealed and len(sealed) < 1_000


def test_a_login_ends_and_its_path_is_of_the_console(monkeypatch):
    logins = Logins()
    login = logins.begin("//evil.example")
    assert login.path == "/" == logins.begin("/" + "x" * 5_000).path
    assert len(logins.seal(logins.begin("/" + "x" * 1_400))) < 4_000, "a cookie has at most 4,096 characters"
    monkeypatch.setattr("spark_log.console.access.logins.time.monotonic", lambda: login.until)
    assert logins.finish(logins.seal(login), login.state) is None
    assert LOGIN_S_MAX == 600


@pytest.mark.parametrize("own", [100, 300])
def test_a_user_with_many_sessions_ends_only_own_ones(own):
    sessions = Sessions(1, secure=False)

    def begin(name):
        response = Response()
        sessions.begin(User(name, Role()), response)
        cookie = response.headers["set-cookie"].split(";")[0].encode()
        return Request({"type": "http", "headers": [(b"cookie", cookie)]})

    ann = begin("ann")
    of_bob = [begin("bob") for _ in range(own)]
    assert sessions.user(ann).name == "ann"
    assert [sessions.user(request) is not None for request in of_bob] == [False] * (own - 100) + [True] * 100
