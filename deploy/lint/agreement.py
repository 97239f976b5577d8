"""Checks that the files of deploy/ agree with each other and with the code.

No schema says that a Service selects existing pods, that the grace period is longer than a shutdown, or that the operators' port is
on no ingress. Prints one line per problem; exits 1 if there are any.
"""

import re
import sys
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

import yaml

ROOT = Path(__file__).resolve().parents[2]
KUBERNETES = ROOT / "deploy/kubernetes"
UNIT = ROOT / "deploy/systemd/chancery.service"
CONTAINERFILE = ROOT / "deploy/container/Containerfile"
SHUTDOWN = ROOT / "crates/chancery/src/serve/shutdown.rs"
# Closing the listeners and the database takes a moment on top of the named time-outs.
SPARE_S = 5
# How long a cluster may take to stop sending traffic to a terminating node.
NOTICE_S = 10

problems = []


def check(is_so, file, message):
    if not is_so:
        problems.append(f"{file.relative_to(ROOT)}: {message}")


def documents(folder):
    for file in sorted(folder.glob("*.yaml")):
        for document in yaml.safe_load_all(file.read_text()):
            yield file, document


def of_kind(found, kind):
    return [(file, document) for file, document in found if document["kind"] == kind]


def settings(file):
    return tomllib.loads(file.read_text())


def drain_s():
    """Returns the seconds from SIGTERM to exit, without ops.drain_wait_s."""
    found = re.findall(r"const \w+_TIMEOUT: Duration = Duration::from_secs\((\d+)\)", SHUTDOWN.read_text())
    assert found, f"{SHUTDOWN} has no timeouts any more"
    return sum(map(int, found)) + SPARE_S


def drain_wait_s(config):
    return config.get("ops", {}).get("drain_wait_s", 0)


def check_kustomization(found):
    file = KUBERNETES / "kustomization.yaml"
    kustomization = dict(of_kind(found, "Kustomization"))[file]
    named = set(kustomization["resources"])
    there = {path.name for path in KUBERNETES.glob("*.yaml")} - {file.name}
    check(named == there, file, f"resources and files differ: {sorted(named ^ there)}")
    for generated in kustomization["configMapGenerator"]:
        for name in generated["files"]:
            check((KUBERNETES / name).exists(), file, f"there is no {name}")
    version = settings(ROOT / "Cargo.toml")["workspace"]["package"]["version"]
    tag = kustomization["images"][0]["newTag"]
    check(tag == version, file, f"the image's tag is {tag}, Cargo.toml's version {version}")


def check_deployment(file, deployment, config, examples):
    spec = deployment["spec"]
    pod = spec["template"]["spec"]
    labels = spec["template"]["metadata"]["labels"]
    check(spec["selector"]["matchLabels"].items() <= labels.items(), file, "it does not select its own pods")
    container = pod["containers"][0]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    listened = {name: int(config[name]["listen"].rsplit(":", 1)[1]) for name in ("api", "portal", "auth", "ops")}
    check(ports == listened, file, f"its ports {ports} are not those of chancery.toml, {listened}")
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        probe = container[name]["httpGet"]
        check(probe["port"] == "ops", file, f"{name} must ask the operators' listener")
        path = "/readyz" if name == "readinessProbe" else "/livez"
        check(probe["path"] == path, file, f"{name} must ask {path}")
    before_sigterm_s = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    noticing_s = before_sigterm_s + drain_wait_s(config)
    check(noticing_s >= NOTICE_S, file, f"balancers get {noticing_s} seconds to notice that a node goes; give them {NOTICE_S}")
    needed_s = noticing_s + drain_s()
    given_s = pod["terminationGracePeriodSeconds"]
    check(given_s > needed_s, file, f"a node may take {needed_s} seconds to end, and is given {given_s}")
    check_rights(file, pod, container)
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    check(mounts == {volume["name"] for volume in pod["volumes"]}, file, "volumes and mounts differ")
    secrets = {document["metadata"]["name"]: document["stringData"] for _, document in of_kind(examples, "Secret")}
    for variable in container["env"]:
        if "value" in variable:
            continue
        wanted = variable["valueFrom"]["secretKeyRef"]
        is_there = wanted["key"] in secrets.get(wanted["name"], {})
        check(is_there, file, f"examples/secrets.yaml lacks {wanted['name']} with {wanted['key']}")
    paths = set()
    projected = [source["secret"] for volume in pod["volumes"] for source in volume.get("projected", {}).get("sources", []) if "secret" in source]
    for secret in projected:
        for item in secret["items"]:
            paths.add(item["path"])
            is_there = item["key"] in secrets.get(secret["name"], {})
            check(is_there, file, f"examples/secrets.yaml lacks {secret['name']} with {item['key']}")
    for model in config["models"]:
        named = model.get("api_key_file")
        check(named is None or named in paths, file, f"no secret is mounted as {named}, which chancery.toml names")
    key_file = config["secrets"]["key_file"]
    check(key_file in paths, file, f"no secret is mounted as {key_file}, which chancery.toml names")
    return labels, ports


def check_rights(file, pod, container):
    """Checks what the namespace's Pod Security level requires, and a read-only root file system."""
    check(pod["securityContext"]["runAsNonRoot"] is True, file, "it must not run as root")
    check(pod["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault", file, "seccompProfile is missing")
    rights = container["securityContext"]
    check(rights["allowPrivilegeEscalation"] is False, file, "allowPrivilegeEscalation must be false")
    check(rights["readOnlyRootFilesystem"] is True, file, "the root must be read-only")
    check(rights["capabilities"]["drop"] == ["ALL"], file, "all capabilities must be dropped")
    user = re.search(r"^USER (\d+):\d+$", CONTAINERFILE.read_text(), re.MULTILINE)
    is_same = user is not None and int(user[1]) == pod["securityContext"]["runAsUser"]
    check(is_same, file, "runAsUser is not the Containerfile's USER")


def check_what_selects(found, labels, ports):
    for file, service in of_kind(found, "Service"):
        name = service["metadata"]["name"]
        check(service["spec"]["selector"].items() <= labels.items(), file, f"{name} selects no pods")
        check(service["spec"].get("type", "ClusterIP") == "ClusterIP", file, f"{name} must stay inside the cluster")
        for port in service["spec"]["ports"]:
            check(port["targetPort"] in ports, file, f"{name} leads to no port")
    for file, budget in of_kind(found, "PodDisruptionBudget"):
        check(budget["spec"]["selector"]["matchLabels"].items() <= labels.items(), file, "it selects no pods")
    for file, policy in of_kind(found, "NetworkPolicy"):
        selected = policy["spec"]["podSelector"].get("matchLabels", {})
        check(selected.items() <= labels.items(), file, "it selects no pods")
        for rule in policy["spec"].get("ingress", []):
            names = {port["port"] for port in rule["ports"]}
            check(names <= ports.keys(), file, f"there are no ports {sorted(names - ports.keys())}")
            check(names == {"ops"} or "ops" not in names, file, "who reaches callers' ports must not reach ops")


def check_ingresses(found, examples, config):
    services = {service["metadata"]["name"]: service for _, service in of_kind(found, "Service")}
    hosts = {}
    for file, ingress in of_kind(examples, "Ingress"):
        secured = {host for tls in ingress["spec"]["tls"] for host in tls["hosts"]}
        for rule in ingress["spec"]["rules"]:
            backend = rule["http"]["paths"][0]["backend"]["service"]
            hosts[rule["host"]] = backend["name"]
            check(rule["host"] in secured, file, f"{rule['host']} has no TLS")
            check(backend["name"] in services, file, f"there is no Service {backend['name']}")
            check(backend["name"] != "chancery-ops", file, "the operators' listener must not be reached from outside")
    expected = {
        urlsplit(config["api"]["public_url"]).hostname: "chancery-api",
        urlsplit(config["portal"]["public_url"]).hostname: "chancery-portal",
        urlsplit(config["identity"]["issuer"]).hostname: "chancery-auth",
    }
    check(hosts == expected, KUBERNETES / "examples/ingress.yaml", f"hosts are {hosts}; chancery.toml says {expected}")


def check_unit():
    stop = re.search(r"^TimeoutStopSec=(\d+)$", UNIT.read_text(), re.MULTILINE)
    needed_s = drain_wait_s(settings(UNIT.parent / "chancery.toml")) + drain_s()
    check(stop is not None and int(stop[1]) > needed_s, UNIT, f"TimeoutStopSec must be more than {needed_s}")


def check_toolchain():
    version = settings(ROOT / "Cargo.toml")["workspace"]["package"]["rust-version"]
    built_with = re.search(r"^FROM rust:(\d+\.\d+)", CONTAINERFILE.read_text(), re.MULTILINE)
    is_same = built_with is not None and built_with[1] == version
    check(is_same, CONTAINERFILE, f"it must build with Cargo.toml's Rust {version}")


def main():
    found, examples = list(documents(KUBERNETES)), list(documents(KUBERNETES / "examples"))
    config = settings(KUBERNETES / "chancery.toml")
    check_kustomization(found)
    [(file, deployment)] = of_kind(found, "Deployment")
    labels, ports = check_deployment(file, deployment, config, examples)
    check_what_selects(found, labels, ports)
    check_ingresses(found, examples, config)
    check_unit()
    check_toolchain()
    print("\n".join(problems), file=sys.stderr, end="\n" if problems else "")
    sys.exit(1 if problems else 0)


main()
