"""Rights of clients on a gateway: each API of the table with each right and without it."""

import itertools
from contextlib import suppress

import pytest

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.security.acl_rules import (
    OPERATIONS,
    Permission,
)
from spark_log.cluster.security.acls import add_acls
from spark_log.errors import TopicAlreadyExistsError
from spark_log.gateway.access.rights import CODES, Each, Every, Whole
from spark_log.gateway.server import APIS
from tests.support.gateway_wire import (
    codes_of,
    request_about,
)
from tests.support.security import ACL_OPTIONS, acl, connect, put_users
from tests.support.server_processes import GatewayProcess
from tests.support.topics import make


def needs_of(api, version):
    """The rights that the table asks of a request about the name `flights`."""
    request = request_about("flights", api.request, version)
    request._version = version
    found = []
    for rule in api.rights:
        if isinstance(rule, Whole):
            resource = rule.resource(request)
            found += [] if resource is None else [(rule.operation, *resource)]
        elif isinstance(rule, Every):
            found += [(rule.operation, rule.resource_type, name) for name in getattr(request, rule.field) or ()]
        elif isinstance(rule, Each):
            parents = [request] if rule.within is None else getattr(request, rule.within) or ()
            found += [
                (rule.operation, *rule.resource(request, element))
                for parent in parents
                for element in getattr(parent, rule.field, None) or ()
            ]
    return [need for need in dict.fromkeys(found) if need[2]]  # without a name: a topic id that no topic has


def variants(needs):
    """(name, granted needs, denied needs, the refused resource type): all of them, and all without or against each."""
    yield "all", needs, [], None
    for at, need in enumerate(needs):
        yield f"without-{at}", [*needs[:at], *needs[at + 1 :]], [], need[1]
        yield f"denied-{at}", needs, [need], need[1]


CASES = [
    (api, version, f"{api.name}-{version}-{name}", granted, denied, refused)
    for api in APIS
    for version in sorted({api.advertised[1], max(api.advertised[0], api.served_from or 0)})
    for name, granted, denied, refused in variants(needs_of(api, version))
]


@pytest.mark.slow
def test_every_api_with_every_right_alone_missing_or_denied(tmp_path):
    with Cluster.init(str(tmp_path / "cluster")) as cluster:
        put_users(cluster, [user for _, _, user, _, _, _ in CASES])
        add_acls(cluster.store, [
            acl(user, operation, resource_type, name, permission=permission)
            for _, _, user, granted, denied, _ in CASES
            for permission, rights in ((Permission.ALLOW, granted), (Permission.DENY, denied))
            for operation, resource_type, name in rights
        ])  # fmt: skip
        with GatewayProcess(tmp_path, str(tmp_path / "cluster"), *ACL_OPTIONS) as gateway:
            wrong = []
            for api, version, user, _, _, refused in CASES:
                if api.name == "DeleteTopics" or refused is None:
                    make_again(cluster)
                with connect(gateway, user) as connection:
                    request = request_about("flights", api.request, version)
                    found = codes_of(connection.exchange(request, version), version) & set(CODES.values())
                if found != (set() if refused is None else {CODES[refused]}):
                    wrong.append((user, found, refused))
            assert wrong == []
            assert "Traceback" not in gateway.output, gateway.output[-4000:]
    assert len(CASES) > 200


def make_again(cluster):
    with suppress(TopicAlreadyExistsError):
        make(cluster, "flights", 2)


def test_every_api_has_an_entry_and_every_entry_an_api():
    free = {api.name for api in APIS if not api.rights}
    assert free == {"ApiVersions", "DescribeCluster"}
    for api, version in itertools.product(APIS, (0, 1)):
        for operation, resource_type, _ in needs_of(api, api.advertised[version]):
            assert operation in OPERATIONS[resource_type], api.name
