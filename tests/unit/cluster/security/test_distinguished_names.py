"""Names of certificates as Java writes them (X500Principal.getName, RFC 2253)."""

import pytest

from spark_log.cluster.security.distinguished_names import distinguished_name


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        ([[("organizationName", "Shop")], [("organizationalUnitName", "Sales")], [("commonName", "anna")]],
         "CN=anna,OU=Sales,O=Shop"),
        ([[("countryName", "DE"), ("commonName", "a")]], "C=DE+CN=a"),
        ([[("commonName", 'a,b+c"d\\e<f>g;h')]], 'CN=a\\,b\\+c\\"d\\\\e\\<f\\>g\\;h'),
        ([[("commonName", "#1")]], "CN=\\#1"),
        ([[("commonName", " a ")]], "CN=\\ a\\ "),
        ([[("commonName", "x,OU=admins")]], "CN=x\\,OU=admins"),
        ([[("domainComponent", "org"), ], [("userId", "7")]], "UID=7,DC=org"),
    ],
)  # fmt: skip
def test_subject(subject, name):
    assert distinguished_name(subject) == name
