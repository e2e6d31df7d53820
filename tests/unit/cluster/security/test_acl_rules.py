"""Rights against a simple oracle, and the cases of Kafka's documentation."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_log.cluster.security.acl_rules import (
    IMPLIED_BY,
    OPERATIONS,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    Rights,
    applies_to,
    fault_of,
)

NAMES = ["a", "ab", "abc", "b", "*"]
PRINCIPALS = ["User:anna", "User:ben", "User:*"]
HOSTS = ["10.0.0.1", "10.0.0.2", "*"]
TYPES = [ResourceType.TOPIC, ResourceType.GROUP]

acls = st.builds(
    Acl,
    st.sampled_from(TYPES),
    st.sampled_from(NAMES),
    st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    st.sampled_from(PRINCIPALS),
    st.sampled_from(HOSTS),
    st.sampled_from([Operation.ALL, Operation.READ, Operation.WRITE, Operation.DESCRIBE]),
    st.sampled_from([Permission.DENY, Permission.ALLOW]),
)


def covers(acl, resource_type, name):
    if acl.resource_type != resource_type:
        return False
    if acl.pattern_type == PatternType.PREFIXED:
        return name[: len(acl.resource_name)] == acl.resource_name
    return acl.resource_name == "*" or acl.resource_name == name


def oracle(known, everyone, principal, host, operation, resource_type, name):
    """Kafka's rules in one sentence each."""
    here = [acl for acl in known if covers(acl, resource_type, name)]
    if not here:
        return everyone
    mine = [acl for acl in here if acl.principal in (principal, "User:*") and acl.host in (host, "*")]
    for acl in mine:
        if acl.permission == Permission.DENY and acl.operation in (operation, Operation.ALL):
            return False
    for acl in mine:
        implied = operation == Operation.DESCRIBE and acl.operation in (Operation.READ, Operation.WRITE)
        if acl.permission == Permission.ALLOW and (implied or acl.operation in (operation, Operation.ALL)):
            return True
    return False


@settings(max_examples=300)
@given(
    st.lists(acls, max_size=8),
    st.booleans(),
    st.sampled_from(PRINCIPALS[:2]),
    st.sampled_from(HOSTS[:2]),
    st.sampled_from([Operation.READ, Operation.WRITE, Operation.DESCRIBE]),
    st.sampled_from(TYPES),
)
def test_rights_are_those_of_the_oracle(known, everyone, principal, host, operation, resource_type):
    rights = Rights(known, allow_everyone_if_no_acl_found=everyone)
    for name in ["a", "ab", "abc", "abd", "b", "c"]:
        expected = oracle(known, everyone, principal, host, operation, resource_type, name)
        assert rights.allows(principal, host, operation, resource_type, name) == expected
        if expected and not everyone and operation == Operation.WRITE:
            assert rights.allows_any(principal, host, operation, resource_type)
    assert Rights(known, frozenset({principal})).allows(principal, host, operation, resource_type, "a")


@given(st.lists(acls, max_size=8), st.sampled_from(HOSTS[:2]))
def test_a_deny_never_adds_a_right_and_an_allow_never_removes_one(known, host):
    def granted(some):
        rights = Rights(some)
        return {
            (name, operation)
            for name in ("a", "abc", "b")
            for operation in (Operation.READ, Operation.DESCRIBE)
            if rights.allows("User:anna", host, operation, ResourceType.TOPIC, name)
        }

    allows = [acl for acl in known if acl.permission == Permission.ALLOW]
    denies = [acl for acl in known if acl.permission == Permission.DENY]
    assert granted(known) <= granted(allows)
    assert granted(denies) == set()


@pytest.mark.parametrize("deny", ["a", "ab"])
def test_any_name_is_not_allowed_where_a_denied_prefix_covers_the_allowed_one(deny):
    def acl(name, pattern, permission):
        return Acl(ResourceType.TOPIC, name, pattern, "User:anna", "*", Operation.WRITE, permission)

    rights = Rights([
        acl("ab", PatternType.PREFIXED, Permission.ALLOW), acl(deny, PatternType.PREFIXED, Permission.DENY),
    ])  # fmt: skip
    assert not rights.allows_any("User:anna", "h", Operation.WRITE, ResourceType.TOPIC)
    longer = Rights([
        acl("ab", PatternType.PREFIXED, Permission.ALLOW), acl("abc", PatternType.PREFIXED, Permission.DENY),
    ])  # fmt: skip
    assert longer.allows_any("User:anna", "h", Operation.WRITE, ResourceType.TOPIC)


@given(st.lists(acls, max_size=8), st.sampled_from(["a", "abc", "b"]))
def test_a_filter_that_matches_a_name_finds_the_patterns_that_apply_to_it(known, name):
    filter_ = AclFilter(ResourceType.TOPIC, name, PatternType.MATCH)
    assert [acl for acl in known if filter_.matches(acl)] == [
        acl
        for acl in known
        if acl.resource_type == ResourceType.TOPIC and (applies_to(acl, name) or acl.resource_name == name)
    ]
    exact = AclFilter(ResourceType.TOPIC, name, PatternType.LITERAL)
    assert all(
        acl.pattern_type == PatternType.LITERAL and acl.resource_name == name for acl in known if exact.matches(acl)
    )


def test_every_operation_of_a_resource_can_be_allowed_and_implied_ones_exist():
    for resource_type, operations in OPERATIONS.items():
        name = "kafka-cluster" if resource_type == ResourceType.CLUSTER else "x"
        for operation in Operation:
            acl = Acl(resource_type, name, PatternType.LITERAL, "User:a", "*", operation, Permission.ALLOW)
            assert (fault_of(acl) is None) == (operation in (*operations, Operation.ALL))
    assert all(operation not in implied for operation, implied in IMPLIED_BY.items())


@pytest.mark.parametrize(
    "change",
    [{"resource_type": ResourceType.ANY}, {"pattern_type": PatternType.MATCH}, {"permission": Permission.ANY},
     {"principal": "anna"}, {"principal": "User:"}, {"resource_name": ""}, {"host": ""},
     {"resource_type": ResourceType.CLUSTER, "operation": Operation.CREATE}],
)  # fmt: skip
def test_acls_that_cannot_be_created(change):
    good = {"resource_type": ResourceType.TOPIC, "resource_name": "x", "pattern_type": PatternType.LITERAL,
            "principal": "User:a", "host": "*", "operation": Operation.READ,
            "permission": Permission.ALLOW}  # fmt: skip
    assert fault_of(Acl(**good)) is None
    assert fault_of(Acl(**{**good, **change})) is not None
