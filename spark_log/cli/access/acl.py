"""The commands `spark-log acl …`, which manage the permissions of principals on a gateway."""

from typing import TYPE_CHECKING, Annotated

import typer

from spark_log.cli.output import print_rows, say
from spark_log.cli.shared_options import Cluster_, Json, open_cluster
from spark_log.spark.jobs.options.arguments import usage_error

if TYPE_CHECKING:
    from spark_log.cluster.security.acl_rules import Acl, AclFilter, Operation, PatternType, ResourceType

app = typer.Typer(no_args_is_help=True, help="Who may do what on gateways with --acls: add, list and remove ACLs.")

Principal = Annotated[
    list[str] | None,
    typer.Option("--principal", help="User:NAME, or User:* for all; repeatable.", show_default=False),
]
Operations = Annotated[
    list[str] | None,
    typer.Option("--operation", help="Such as READ, WRITE, DESCRIBE or ALL; repeatable.", show_default=False),
]
Host = Annotated[str | None, typer.Option(help="Address of clients. Default: all.", show_default=False)]
Topic = Annotated[str | None, typer.Option(help="Name of a topic; * for all.", show_default=False)]
Group = Annotated[str | None, typer.Option(help="Name of a group; * for all.", show_default=False)]
TransactionalId = Annotated[str | None, typer.Option(help="A transactional id; * for all.", show_default=False)]
OnCluster = Annotated[bool, typer.Option("--on-cluster", help="The cluster itself.")]
Prefixed = Annotated[bool, typer.Option("--prefixed", help="The names are prefixes.")]


@app.command()
def add(
    cluster: Cluster_,
    principal: Principal = None,
    operation: Operations = None,
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    on_cluster: OnCluster = False,
    prefixed: Prefixed = False,
    host: Host = None,
    deny: Annotated[bool, typer.Option("--deny", help="Deny; a deny counts before every allow.")] = False,
) -> None:
    """Allow operations on resources, or deny them with --deny.

    **Examples**

    - `spark-log acl add --principal User:anna --operation READ --topic orders --group shop`
    - `spark-log acl add --principal User:etl --operation WRITE --topic raw- --prefixed`
    """
    from itertools import product

    from spark_log.clients.admin.acls import create_acls
    from spark_log.clients.admin.audit import local_user
    from spark_log.cluster.security.acl_rules import Acl, PatternType, Permission

    resources = _resources(topic, group, transactional_id, on_cluster)
    if not principal or not operation or not resources:
        raise usage_error("--principal", "an ACL needs --principal, --operation, and a resource such as --topic")
    permission = Permission.DENY if deny else Permission.ALLOW
    pattern = PatternType.PREFIXED if prefixed else PatternType.LITERAL
    acls = [
        Acl(
            resource_type, name,
            _pattern_of(resource_type, pattern),
            who, host or "*", what, permission,
        )
        for (resource_type, name), who, what in product(resources, principal, _operations(operation))
    ]  # fmt: skip
    with open_cluster(cluster) as opened:
        for error in create_acls(opened, local_user(), "cli", acls):
            if error is not None:
                raise error
    say(f"Added {len(acls)} ACLs. Gateways apply them within a second.")


@app.command("list")
def list_(
    cluster: Cluster_,
    principal: Principal = None,
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    on_cluster: OnCluster = False,
    as_json: Json = False,
) -> None:
    """List ACLs. With a resource, list those that apply to it, including prefixed ones."""
    from spark_log.clients.admin.acls import facts_of, find_acls, target_of
    from spark_log.cluster.security.acl_rules import PatternType

    filters = _filters(principal, _resources(topic, group, transactional_id, on_cluster), PatternType.MATCH)
    with open_cluster(cluster) as opened:
        found = list(dict.fromkeys(acl for each in filters for acl in find_acls(opened, each)))
    rows = [{"resource": target_of(acl), **facts_of(acl)} for acl in found]
    columns = ["Resource", "Principal", "Host", "Operation", "Permission"]
    print_rows(as_json, rows, columns, [tuple(row.values()) for row in rows])


@app.command()
def remove(
    cluster: Cluster_,
    principal: Principal = None,
    operation: Operations = None,
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    on_cluster: OnCluster = False,
    prefixed: Prefixed = False,
) -> None:
    """Remove the ACLs that match the given principals, operations and resources. A missing option matches all."""
    from dataclasses import replace

    from spark_log.clients.admin.acls import delete_acls
    from spark_log.clients.admin.audit import local_user
    from spark_log.cluster.security.acl_rules import Operation, PatternType

    resources = _resources(topic, group, transactional_id, on_cluster)
    if not principal and not resources:
        raise usage_error("--principal", "give --principal or a resource such as --topic")
    pattern = PatternType.ANY if not resources else PatternType.PREFIXED if prefixed else PatternType.LITERAL
    filters = [
        replace(each, operation=what)
        for each in _filters(principal, resources, pattern)
        for what in (_operations(operation) if operation else [Operation.ANY])
    ]
    with open_cluster(cluster) as opened:
        found: list[list[Acl]] = delete_acls(opened, local_user(), "cli", filters)
    say(f"Removed {len({acl for acls in found for acl in acls})} ACLs.")


def _resources(
    topic: str | None, group: str | None, transactional_id: str | None, on_cluster: bool
) -> list[tuple["ResourceType", str]]:
    from spark_log.cluster.security.acl_rules import CLUSTER_NAME, ResourceType

    given = [
        (ResourceType.TOPIC, topic), (ResourceType.GROUP, group), (ResourceType.TRANSACTIONAL_ID, transactional_id),
        (ResourceType.CLUSTER, CLUSTER_NAME if on_cluster else None),
    ]  # fmt: skip
    return [(resource_type, name) for resource_type, name in given if name is not None]


def _filters(
    principals: list[str] | None, resources: list[tuple["ResourceType", str]], pattern: "PatternType"
) -> "list[AclFilter]":
    from spark_log.cluster.security.acl_rules import AclFilter

    named: list[str | None] = [*principals] if principals else [None]
    if not resources:
        return [AclFilter(principal=who) for who in named]
    return [
        AclFilter(resource_type, name, _pattern_of(resource_type, pattern), principal=who)
        for who in named
        for resource_type, name in resources
    ]


def _pattern_of(resource_type: "ResourceType", pattern: "PatternType") -> "PatternType":
    """Return the pattern for a resource. The cluster is never prefixed, because it has only one name."""
    from spark_log.cluster.security.acl_rules import PatternType, ResourceType

    on_cluster = resource_type is ResourceType.CLUSTER
    return PatternType.LITERAL if on_cluster and pattern is PatternType.PREFIXED else pattern


def _operations(names: list[str]) -> "list[Operation]":
    from spark_log.cluster.security.acl_rules import Operation

    operations: list[Operation] = []
    for name in names:
        known = Operation.__members__.get(name.upper().replace("-", "_"))
        if known is None or known is Operation.ANY:
            raise usage_error("--operation", f"there is no operation {name!r}")
        operations.append(known)
    return operations
