"""One machine is one client, whichever of its addresses it uses."""

import pytest

from spark_log.gateway.limits.networks import network_of


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2::1", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::9", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::1", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:10.1.2.3", "::ffff:10.1.2.3"),
        ("", ""),
    ],
)
def test_an_address_of_version_6_counts_as_its_network(host, network):
    assert network_of(host) == network
