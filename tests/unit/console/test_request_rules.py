"""The rules of requests, paths and roles."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_log.console.access.access_file import read_access_file
from spark_log.console.access.passwords import hash_password, matches
from spark_log.console.access.request_rules import METRICS, may_send
from spark_log.console.access.roles import Allow, Role, role_of
from spark_log.console.paths import decode_segment, encode_segment, url
from spark_log.console.settings import AuthMethod, ConsoleSettings, checked, parse_allow
from spark_log.errors import InvalidConfigurationError
from spark_log.gateway.http.requests import Sender, host_allowed, sender_of

NAMES = st.text(st.characters(exclude_categories=["Cs"]))


@given(NAMES)
def test_any_name_is_one_segment_of_a_path_and_is_read_back(name):
    segment = encode_segment(name)
    assert decode_segment(segment) == name
    assert segment not in ("", ".", "..") and segment.isascii()
    assert not set(segment) & set("/%?#\\<>\"'& ")


def test_topic_names_are_segments_as_they_are():
    assert url("/topics/{topic}/messages", topic="a.b-c_D9") == "/topics/a.b-c_D9/messages"
    assert url("/groups/{group}", {"sort": "a&b", "page": None}, group="../x") == "/groups/..~2Fx?sort=a%26b"
    assert decode_segment("50~ of") == "50~ of", "typed by hand"


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("localhost", True), ("localhost:8080", True), ("127.0.0.1:1", True), ("[::1]:8080", True), ("LOCALHOST", True),
        (None, False), ("", False), ("evil.example", False), ("localhost.evil.example", False),
        ("evil.example@localhost", False), ("localhost/..", False), ("[::1", False), ("evil.example:localhost", False),
    ],
)  # fmt: skip
def test_only_own_names_are_hosts(host, allowed):
    assert host_allowed(host, {"localhost", "127.0.0.1", "::1"}) is allowed


@pytest.mark.parametrize(
    ("headers", "sender"),
    [
        ({"sec-fetch-site": "same-origin"}, Sender.OWN_SITE),
        ({"sec-fetch-site": "same-site"}, Sender.OTHER_SITE),
        ({"sec-fetch-site": "none"}, Sender.USER),
        ({"sec-fetch-site": "cross-site", "origin": "http://localhost:8080"}, Sender.OTHER_SITE),
        ({"origin": "http://localhost:8080"}, Sender.OWN_SITE),
        ({"origin": "http://localhost:8081"}, Sender.OTHER_SITE),
        ({"origin": "null"}, Sender.OTHER_SITE),
        ({"origin": "http://evil.example", "referer": "http://localhost:8080/"}, Sender.OTHER_SITE),
        ({"referer": "http://localhost:8080/topics"}, Sender.OWN_SITE),
        ({"referer": "http://localhost:8080@evil.example/"}, Sender.OTHER_SITE),
        ({"origin": "http://[", "referer": "http://localhost:8080/"}, Sender.OTHER_SITE),
        ({}, Sender.UNKNOWN),
    ],
)
def test_headers_say_who_sent_a_request(headers, sender):
    assert sender_of(headers, {"localhost:8080"}) is sender


def test_other_sites_send_nothing_and_only_the_console_sends_changes():
    for sender in Sender:
        for has_session in (True, False):
            assert may_send("POST", "/", sender, has_session) is (sender is Sender.OWN_SITE)
            for path in ("/", METRICS, "/topics"):
                unproven = sender is Sender.UNKNOWN and not has_session and path == "/topics"
                refused = sender is Sender.OTHER_SITE or unproven
                assert may_send("GET", path, sender, has_session) is not refused, (sender, has_session, path)


def test_the_first_group_of_the_file_that_a_user_belongs_to_gives_the_role():
    narrow, wide, rest = Role(topics=("a-*",)), Role(frozenset(Allow)), Role(messages=False)
    roles = {"narrow": narrow, "wide": wide, "*": rest}
    assert role_of(["wide", "narrow"], roles) is narrow
    assert role_of(["other"], roles) is rest
    assert role_of(["other"], {"wide": wide}) is None
    assert [narrow.sees(name) for name in ("a-1", "b-a-1", "A-1", "")] == [True, False, False, False]
    assert not Role(topics=()).sees("a")


def test_passwords_match_their_hash_only():
    hashed = hash_password("pä ss:word")
    assert matches("pä ss:word", hashed) and not matches("pass", hashed) and not matches("", "scrypt:x")
    assert hash_password("a") != hash_password("a"), "each has its salt"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "no group"),
        ("[groups.a]\nrole = 'admin'", "role"),
        ("[groups.a]\nrole = ['drop']", "drop"),
        ("[groups.a]\ntopic = ['*']", "topic"),
        ("[groups.a]\nmasked = ['recrod.email']", "recrod.email"),
        ("[groups.a]\n[users.b]\npassword = 'secret'", "users.b"),
        ("[groups.a]\n[header]\nproxies = []", "proxies"),
        ("[groups.a]\n[header]\nproxies = ['proxy.example']", "proxy.example"),
        ("[groups.a]\n[oidc]\nissuer = 'http://login.example'\nclient_id = 'c'", "https"),
        ("[groups", "TOML|line|Expected|Invalid"),
    ],
)
def test_a_wrong_access_file_is_refused_with_the_name_of_the_field(tmp_path, text, named):
    (tmp_path / "access.toml").write_text(text)
    with pytest.raises(InvalidConfigurationError, match=named) as refused:
        read_access_file(str(tmp_path / "access.toml"))
    assert "secret" not in str(refused.value)


def test_another_address_needs_an_explicit_method_and_methods_need_their_tables():
    outside = ConsoleSettings(host="0.0.0.0")
    with pytest.raises(InvalidConfigurationError, match="--auth basic --access FILE"):
        checked(outside, None)
    assert checked(outside, AuthMethod.TOKEN).auth is AuthMethod.TOKEN
    assert checked(ConsoleSettings(), None).auth is AuthMethod.TOKEN
    for method in (AuthMethod.BASIC, AuthMethod.HEADER, AuthMethod.OIDC):
        with pytest.raises(InvalidConfigurationError, match="--access FILE"):
            checked(outside, method)
    with pytest.raises(InvalidConfigurationError, match="'delete'"):
        parse_allow("produce,delete")
