"""The chart in kubernetes/: its values, the objects that it renders, and the examples. No cluster runs here.

It needs helm and kubeconform, which `make check-kubernetes` builds.
"""

import re
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from spark_log.cli.main import app
from spark_log.cluster import store_directory
from spark_log.config import ClusterSettings
from spark_log.gateway.gateway_settings import limits_of
from spark_log.spark.jobs.options.arguments import parse_pairs
from tests.support.operations import CHART, FOLDER, Object, find_program, lint, objects, pods, render, validate

pytestmark = pytest.mark.skipif(
    None in (find_program("helm"), find_program("kubeconform")),
    reason="there is no helm or no kubeconform: make check-kubernetes builds both",
)

EXAMPLES = sorted(FOLDER.glob("examples/*.yaml"))
VALUES = [*FOLDER.glob("values/*.yaml"), *(path for path in EXAMPLES if path.stem.endswith("values"))]
LONG_RUNNING = {"gateway", "coordinator", "console", "registry"}


@pytest.fixture(scope="module", params=sorted(VALUES), ids=lambda path: path.stem)
def rendered(request: pytest.FixtureRequest) -> str:
    return render("--values", str(request.param))


@pytest.fixture(scope="module")
def everything() -> list[Object]:
    return objects(render("--values", str(FOLDER / "values" / "all.yaml")))


@pytest.mark.parametrize("path", sorted(VALUES), ids=lambda path: path.stem)
def test_helm_finds_no_mistake(path: Path) -> None:
    lint("--values", str(path))


def test_objects_follow_their_schemas(rendered: str) -> None:
    validate(rendered)


@pytest.mark.parametrize("path", [path for path in EXAMPLES if path not in VALUES], ids=lambda path: path.stem)
def test_examples_follow_their_schemas(path: Path) -> None:
    validate(path.read_text())


def test_the_schemas_refuse_an_unknown_field(rendered: str) -> None:
    with pytest.raises(ValueError, match="replicaz"):
        validate(rendered.replace("replicas:", "replicaz:"))


def test_each_pod_is_confined(rendered: str) -> None:
    for component, pod in pods(objects(rendered)):
        security = pod["securityContext"]
        assert security["runAsNonRoot"] and security["runAsUser"] == 10001, component
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}, component
        assert pod["automountServiceAccountToken"] is False, component
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod), component
        assert pod["topologySpreadConstraints"], component
        [container] = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }, component
        for kind in ("requests", "limits"):
            assert set(container["resources"][kind]) == {"cpu", "memory"}, (component, kind)
        assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"], component
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["volumes"]}, component
        assert not any("hostPath" in volume for volume in pod["volumes"]), component
        probes = {name for name in container if name.endswith("Probe")}
        assert probes == ({"startupProbe", "livenessProbe", "readinessProbe"} if component in LONG_RUNNING else set())


def test_no_object_has_a_password(rendered: str) -> None:
    found = objects(rendered)
    assert not [each["metadata"]["name"] for each in found if each["kind"] == "Secret"]
    for component, pod in pods(found):
        for variable in pod["containers"][0]["env"]:
            if re.search("PASSWORD|SECRET|KEY|TOKEN", variable["name"]):
                from_secret = "secretKeyRef" in variable.get("valueFrom", {})
                assert from_secret or variable["value"].startswith("/etc/spark-log/"), (component, variable["name"])
    assert not re.search(r"://[^/@\s]*:[^/@\s]+@", rendered), "an address has a password"


@pytest.mark.parametrize(
    ("option", "error"),
    [
        ("gatway.replicas=1", "gatway"),
        ("gateway.sals=x", "sals"),
        ("store.password=x", "password"),
        ("store.address=postgresql://me:secret@db/log", "/store/address"),
        ("store.address=postgresql://me@db/log?password=secret", "/store/address"),
        ("stores.east.address=postgresql://me@db/log", "address"),
        ("stores.east.caSecret=ca", "existingSecret"),
        ("stores.home.existingSecret=x", "home"),
        ("stores.East.existingSecret=x", "East"),
        ("logDir.uri=s3://key:secret@bucket/log", "/logDir/uri"),
        ("logDir.uri=s3://bucket/log", "existingClaim"),
        ("logDir.existingClaim=", "existingClaim"),
        ("gateway.sasl={PLAIN}", "PLAIN sends passwords"),
        ("gateway.acls=true", "ANONYMOUS"),
        ("console.enabled=true", "publicUrl and accessSecret"),
        ("tls.certManager.enabled=true", "issuer.name"),
        ("resources.gateway.limits.memory=null", "memory"),
    ],
)
def test_wrong_values_are_refused(option: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        render("--set", option)


def test_every_value_has_a_use() -> None:
    text = "".join(path.read_text() for path in (CHART / "templates").iterdir())
    for section, values in yaml.safe_load((CHART / "values.yaml").read_text()).items():
        used = [section] if not isinstance(values, dict) else [f"{section}.{name}" for name in values]
        for name in used:
            assert f"Values.{name}" in text or section == "resources", name


def test_each_pod_has_the_addresses_of_the_data_stores_as_files() -> None:
    found = objects(render("--values", str(FOLDER / "values" / "several-stores.yaml")))
    for component, pod in pods(found):
        [container] = pod["containers"]
        given = {each["name"]: each.get("value") for each in container["env"]}
        for name in ("east", "eu-west"):
            assert given[store_directory.variable(name)] == f"/etc/spark-log/stores/{name}/address", component
        [volume] = [each["projected"]["sources"] for each in pod["volumes"] if each["name"] == "stores"]
        files = {(each["secret"]["name"], item["path"]) for each in volume for item in each["secret"]["items"]}
        assert files == {
            ("east-db", "east/address"), ("eu-west-db", "eu-west/address"), ("eu-west-db-ca", "eu-west/ca.crt")
        }, component  # fmt: skip


def test_options_of_the_commands_exist(everything: list[Object]) -> None:
    """Typer refuses an unknown option before it looks at --help."""
    for component, pod in pods(everything):
        [container] = pod["containers"]
        program, *words = container["args"]
        assert program == "spark-log"
        done = CliRunner().invoke(app, [*words, "--help"], env={"SPARK_LOG_CLUSTER": "/none"})
        assert done.exit_code == 0, (component, done.output)
        limits_of([word.removeprefix("--config=") for word in words if word.startswith("--config=")])
        settings = [word.removeprefix("--setting=") for word in words if word.startswith("--setting=")]
        ClusterSettings.parse(parse_pairs(settings, "--setting"))


def test_policies_select_all_pods_and_let_only_named_peers_in(everything: list[Object]) -> None:
    policies = [each["spec"] for each in everything if each["kind"] == "NetworkPolicy"]
    [base] = [spec for spec in policies if "ingress" not in spec and len(spec["podSelector"]["matchLabels"]) == 2]
    for each in everything:
        if each["kind"] in ("Deployment", "StatefulSet", "Job"):
            labels = each["spec"]["template"]["metadata"]["labels"]
            assert base["podSelector"]["matchLabels"].items() <= labels.items(), each["metadata"]["name"]
    assert all(rule["from"] for spec in policies for rule in spec.get("ingress", ()))
    assert all(rule["ports"] for spec in policies for rule in (*spec.get("ingress", ()), *spec.get("egress", ())))


def test_each_gateway_has_a_service_and_a_name_in_the_certificate() -> None:
    found = objects(render("--values", str(FOLDER / "values" / "tls.yaml")))
    hosts = [f"kafka-{number}.example.org" for number in range(3)]
    services = [each for each in found if each["kind"] == "Service" and each["spec"].get("type") == "LoadBalancer"]
    names = [each["metadata"]["annotations"]["external-dns.alpha.kubernetes.io/hostname"] for each in services]
    assert names == hosts
    assert {port["port"] for each in services for port in each["spec"]["ports"]} == {9093}
    [certificate] = [each["spec"] for each in found if each["kind"] == "Certificate"]
    assert set(hosts) | {"log-spark-log-gateway.logs.svc"} <= set(certificate["dnsNames"])


def test_alerts_and_dashboard_are_those_of_conf(everything: list[Object]) -> None:
    conf = FOLDER.parent / "conf"
    by_kind = {each["kind"]: each for each in everything}
    assert by_kind["PrometheusRule"]["spec"] == yaml.safe_load((conf / "prometheus" / "alerts.yaml").read_text())
    shown = by_kind["ConfigMap"]["data"]["spark-log.json"]
    assert yaml.safe_load(shown) == yaml.safe_load((conf / "grafana" / "spark-log.json").read_text())


@pytest.mark.parametrize("name", ["spark-application", "spark-connect-server"])
def test_only_drivers_of_spark_get_the_store(name: str) -> None:
    spec = objects((FOLDER / "examples" / f"{name}.yaml").read_text())[0]["spec"]
    assert re.search("SPARK_LOG_CLUSTER.*secret", repr(spec["driverSpec"]))
    assert not re.search("SPARK_LOG_CLUSTER|PASSWORD|secret", repr((spec["executorSpec"], spec["sparkConf"])))
