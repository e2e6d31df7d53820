"""Addresses: files that hold one, and connections that others on the network could read."""

import pytest

from spark_log.errors import InvalidConfigurationError
from spark_log.metadata.address import Address, check_transport, refuse_insecure

PASSWORD = "s3cret"


@pytest.mark.parametrize(
    ("url", "environment"),
    [
        ("me:pw@127.0.0.1:5432/log", {}),
        ("me@localhost/log", {}),
        ("me@[::1]:5432/log", {}),
        ("/log", {}),
        ("/log?host=/var/run/postgresql", {}),
        ("me@db.example/log?sslmode=verify-full", {}),
        ("me@db.example/log", {"PGSSLMODE": "verify-full"}),
        ("me@db.example/log?allow_insecure=true", {}),
        ("me@127.0.0.1/log", {"PGHOST": "db.example"}),
        ("/?service=log", {"PGHOST": "db.example"}),
    ],
)
def test_connections_that_are_allowed(url, environment):
    check_transport(Address.parse(f"postgresql://{url}"), environment)


@pytest.mark.parametrize(
    ("url", "environment"),
    [
        ("me:pw@db.example:5432/log", {}),
        ("me@10.0.0.1/log?sslmode=require", {}),
        ("me@db.example/log?sslmode=verify-ca", {"PGSSLMODE": "verify-full"}),
        ("me@127.0.0.1,db.example/log", {}),
        ("/log?host=db.example", {}),
        ("/log?host=127.0.0.1:5432&host=db.example:5432", {}),
        ("me@127.0.0.1/log?hostaddr=10.0.0.1", {}),
        ("/log", {"PGHOST": "db.example"}),
        ("me@127.0.0.1/log", {"PGHOSTADDR": "10.0.0.1"}),
        ("me@[2001:db8::1]:5432/log", {}),
        ("me@db.example/log?allow_insecure=false", {}),
        ("me@localhost.example/log", {}),
    ],
)
def test_connections_that_are_refused(url, environment):
    with pytest.raises(InvalidConfigurationError, match="verify-full") as refused:
        check_transport(Address.parse(f"postgresql://{url}"), environment)
    assert ":pw@" not in str(refused.value)


def test_hosts_of_service_files_are_checked_when_they_are_connected():
    address = Address.parse("postgresql:///?service=log")
    refuse_insecure(address, "/var/run/postgresql", "")
    refuse_insecure(address, "db.example", "verify-full")
    with pytest.raises(InvalidConfigurationError):
        refuse_insecure(address, "db.example", "require")


@pytest.mark.parametrize("url", ["me@db/log?allow_insecure=true", "me@db/log?connect_timeout=3&allow_insecure=true"])
def test_consent_is_kept_in_the_text_and_not_sent_to_the_server(url):
    address = Address.parse(f"postgresql+psycopg://{url}")
    assert address.allow_insecure and "allow_insecure" not in address.url
    assert str(address) == f"postgresql+psycopg://{url}"
    assert Address.parse(str(address)) == address
    with pytest.raises(InvalidConfigurationError, match="true or false"):
        Address.parse("postgresql://db/log?allow_insecure=yes")


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ("me:pw@a:1,b:2/log", "me:pw@/log?host=a,b&port=1,2&target_session_attrs=read-write"),
        ("me@a:1, b:2/log", "me@/log?host=a,b&port=1,2&target_session_attrs=read-write"),
        ("me@a,b/log?sslmode=x", "me@/log?host=a,b&sslmode=x&target_session_attrs=read-write"),
        ("me@[::1]:5,[::2]/log", "me@/log?host=::1,::2&port=5,&target_session_attrs=read-write"),
        ("me@/log?host=a,b&port=1,2", "me@/log?host=a,b&port=1,2&target_session_attrs=read-write"),
        ("/log?host=a:1&host=b:2", "/log?host=a,b&port=1,2&target_session_attrs=read-write"),
        ("me@/log?host=a,b&target_session_attrs=primary", "me@/log?host=a,b&target_session_attrs=primary"),
    ],
)
def test_several_hosts_are_libpqs_lists_and_only_the_primary_is_used(given, place):
    address = Address.parse(f"postgresql://{given}")
    assert address.url == f"postgresql+psycopg://{place}"
    assert address.connect_timeout_s == 3
    assert Address.parse(address.url) == address


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("me:pw@a:1,b:2/log", "me:***@a:1,b:2/log"),
        ("me@a,b/log?sslmode=verify-full", "me@a,b/log?sslmode=verify-full"),
        ("me@[::1]:5,[::2]/log", "me@[::1]:5,[::2]/log"),
        ("me@/log?host=a,b&port=7", "me@a:7,b:7/log"),
        ("me@/log?host=a,b&target_session_attrs=primary", "me@a,b/log?target_session_attrs=primary"),
        ("me@/log?host=/run/a,/run/b", "me@/log?host=/run/a,/run/b&target_session_attrs=read-write"),
    ],
)
def test_several_hosts_are_shown_in_the_form_that_a_shell_takes(given, shown):
    address = Address.parse(f"postgresql://{given}")
    assert str(address) == f"postgresql+psycopg://{shown}"
    parts = set(Address.parse(address.without_password).url.replace(":pw@", "@").replace("?", "&").split("&"))
    expected = address.url.replace(":pw@", "@").replace("port=7", "port=7,7")
    assert parts == set(expected.replace("?", "&").split("&"))


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("a:x,b:2", "HOST:PORT"),
        ("a:99999,b", "HOST:PORT"),
        ("a,", "HOST:PORT"),
        ("a,b/log?port=5", "either"),
        ("/log?host=a:1,b:2", "host=HOST,HOST&port=PORT,PORT"),
        ("/log?host=a,b&target_session_attrs=any", "read-write or primary"),
    ],
)
def test_lists_of_hosts_that_are_refused(given, problem):
    with pytest.raises(InvalidConfigurationError, match=problem) as refused:
        Address.parse(f"postgresql://me:{PASSWORD}@{given}")
    assert PASSWORD not in str(refused.value)


def test_a_file_holds_the_address(tmp_path):
    file = tmp_path / "cluster"
    file.write_text(f"postgresql://me:{PASSWORD}@127.0.0.1/log\n")
    address = Address.parse(str(file))
    assert address.url == f"postgresql+psycopg://me:{PASSWORD}@127.0.0.1/log"
    assert PASSWORD not in f"{address} {address!r} {address.without_password}"
    file.write_text("/data/log\n")
    assert str(Address.parse(str(file))) == "/data/log"


@pytest.mark.parametrize("content", [b"", PASSWORD.encode(), b"\xff" + PASSWORD.encode(), b"relative/folder"])
def test_errors_of_a_file_do_not_show_its_content(tmp_path, content):
    file = tmp_path / "cluster"
    file.write_bytes(content)
    with pytest.raises(InvalidConfigurationError) as refused:
        Address.parse(str(file))
    assert str(file) in str(refused.value) and PASSWORD not in str(refused.value)


def test_the_text_for_another_process_has_the_password_and_no_other_text_has_it():
    for query in ("", "?allow_insecure=true", "?sslmode=require&allow_insecure=true"):
        address = Address.parse(f"postgresql+psycopg://ann:secret@db.example/log{query}")
        assert Address.parse(address.with_password) == address
        assert "secret" not in str(address) + repr(address) + address.without_password
