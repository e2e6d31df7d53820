"""Secrets in texts that are shown, logged or recorded."""

import pytest

from spark_log.errors import redact


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://me:x@h/db", "postgresql://me:***@h/db"),
        ("postgresql://me@h/db", "postgresql://me@h/db"),
        ("postgresql://me:pa/ss@h/db", "postgresql://me:***@h/db"),
        ("postgresql+psycopg://me:p?a#s@s@h/db", "postgresql+psycopg://me:***@h/db"),
        ("https://TOKEN@h/x, then", "https://***@h/x, then"),
        ("https://TOKEN:@h", "https://***@h"),
        ("https://TOKEN:x-oauth-basic@h", "https://***@h"),
        ("https://me@example.org:pw@h/", "https://***@h/"),
        ("http://a:p/w@h1:1,http://b:pw@h2", "http://***@h1:1,http://***@h2"),
        ("s3://KEY@bucket/x", "s3://***@bucket/x"),
        ("s3://KEY:SEC/RET@bucket/x", "s3://KEY:***@bucket/x"),
        ("s3://b/z?aws_secret_access_key=k&region=r", "s3://b/z?aws_secret_access_key=***&region=r"),
        ("http://h?Access_Token=a&x=1", "http://h?Access_Token=***&x=1"),
        ("cannot connect: host=h password='a b' user=me", "cannot connect: host=h password=*** user=me"),
        ("file:///a b/c:d and http://h:80/x?a=b", "file:///a b/c:d and http://h:80/x?a=b"),
        ("s3://bucket/a@b", "s3://bucket/a@b"),
        ("http://h/a@b and /a:***@b", "http://h/a@b and /a:***@b"),
    ],
)
def test_secrets_are_replaced_and_nothing_else(text, shown):
    assert redact(text) == shown
    assert redact(shown) == shown
