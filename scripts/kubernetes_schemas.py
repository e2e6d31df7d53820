"""Writes the JSON Schemas of kubernetes/schemas, with which `make check-kubernetes` validates without a network.

    python scripts/kubernetes_schemas.py SWAGGER.json CRD.yaml...

SWAGGER.json is api/openapi-spec/swagger.json of Kubernetes; kubernetes/schemas/README.md names the files and commits
that were used. Schemas of the kinds below are kept, without descriptions, and refuse unknown fields.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[1] / "kubernetes" / "schemas"
KINDS = {
    "apps/v1": ["Deployment", "StatefulSet"],
    "autoscaling/v2": ["HorizontalPodAutoscaler"],
    "batch/v1": ["Job"],
    "networking.k8s.io/v1": ["Ingress", "NetworkPolicy"],
    "policy/v1": ["PodDisruptionBudget"],
    "rbac.authorization.k8s.io/v1": ["Role", "RoleBinding"],
    "v1": ["ConfigMap", "PersistentVolumeClaim", "Secret", "Service", "ServiceAccount"],
}
_PREFIX = "#/definitions/"
_POD_TEMPLATE = "io.k8s.api.core.v1.PodTemplateSpec"
_OTHER_TYPES: dict[str, Any] = {  # the API accepts more than its description says
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": {"type": ["integer", "string"]},
    "io.k8s.apimachinery.pkg.api.resource.Quantity": {"type": ["number", "string"]},
}
_DROPPED = ("description", "default", "example", "title")
_CUSTOM_FIELDS_LEFT_OUT = ("acme", "vault", "venafi")
"""Large parts of cert-manager's Issuer that no example uses."""


def main(swagger: Path, *custom: Path) -> None:
    for old in FOLDER.glob("*.json"):
        old.unlink()
    definitions: dict[str, Any] = json.loads(swagger.read_text())["definitions"]
    used = {_POD_TEMPLATE}
    for api_version, kinds in KINDS.items():
        for kind in kinds:
            name = _definition(definitions, api_version, kind)
            used.add(name)
            _write(kind, api_version, {"$ref": f"definitions.json{_PREFIX}{name}"})
    kept = {name: _strict(definitions[name], "") for name in sorted(_reachable(definitions, used))}
    kept |= {name: schema for name, schema in _OTHER_TYPES.items() if name in kept}
    lines = [f"{json.dumps(name)}: {_compact(schema)}" for name, schema in kept.items()]
    (FOLDER / "definitions.json").write_text('{"definitions": {\n' + ",\n".join(lines) + "\n}}\n")
    for path in custom:
        for document in yaml.safe_load_all(path.read_text()):
            spec = document["spec"]
            for version in spec["versions"]:
                if version["name"] == "v1":
                    schema = _strict(version["schema"]["openAPIV3Schema"], "definitions.json")
                    schema["properties"] |= {name: {"type": "string"} for name in ("apiVersion", "kind")}
                    schema["properties"]["metadata"] = {"type": "object"}
                    _write(spec["names"]["kind"], f"{spec['group']}/v1", schema)


def _definition(definitions: dict[str, Any], api_version: str, kind: str) -> str:
    group, _, version = api_version.rpartition("/")
    wanted = {"group": group, "kind": kind, "version": version}
    return next(
        name for name, schema in definitions.items() if wanted in schema.get("x-kubernetes-group-version-kind", ())
    )


def _reachable(definitions: dict[str, Any], names: set[str]) -> set[str]:
    found: set[str] = set()
    waiting = set(names)
    while waiting:
        name = waiting.pop()
        found.add(name)
        waiting |= set(_references(definitions[name])) - found
    return found


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"].removeprefix(_PREFIX)
        for value in schema.values():
            yield from _references(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _references(value)


def _strict(schema: Any, place: str) -> Any:
    """Return the schema without descriptions, and with unknown fields refused. `place` is the file of definitions."""
    if isinstance(schema, list):
        return [_strict(each, place) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {
        name: _strict(value, place)
        for name, value in schema.items()
        if name not in ("properties", *_DROPPED) and not name.startswith("x-kubernetes") and name != "format"
    }
    if "properties" in schema:
        kept["properties"] = {
            name: {"$ref": f"{place}{_PREFIX}{_POD_TEMPLATE}"} if name == "podTemplateSpec" else _strict(value, place)
            for name, value in schema["properties"].items()
            if not (place and name in _CUSTOM_FIELDS_LEFT_OUT)
        }
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            kept["additionalProperties"] = False
    return kept


def _write(kind: str, api_version: str, schema: Any) -> None:
    """Write it under the name that kubeconform looks for: kind, first part of the group, version."""
    group, _, version = api_version.rpartition("/")
    parts = [kind.lower(), *([group.partition(".")[0]] if group else []), version]
    lines = [f"{json.dumps(name)}: {_compact(value)}" for name, value in schema.items()]
    (FOLDER / f"{'-'.join(parts)}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _compact(schema: Any) -> str:
    return json.dumps(schema, sort_keys=True, separators=(",", ":"))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
