"""`specd doctor` inspects the service inside its unit: with its user, settings and rights."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.systemd.container import SystemdContainer, documented

pytestmark = pytest.mark.system

Found = dict[str, list[dict[str, Any]]]


def examined(container: SystemdContainer, *, status: int) -> Found:
    """Run `specd doctor`, check its exit status, and return its findings by topic."""
    done = container.result("/opt/specd/bin/specd", "doctor", "--json")
    assert done.returncode == status, done.stdout + done.stderr
    found: Found = {}
    for finding in json.loads(done.stdout):
        found.setdefault(finding["topic"], []).append(finding)
    return found


def test_a_healthy_service_has_no_problem(container: SystemdContainer) -> None:
    container("systemctl", "start", "specd")
    found = examined(container, status=0)
    assert "specd.service runs: " in found["service"][0]["words"]
    assert "answers on http://127.0.0.1:11434" in found["port"][0]["words"]
    # It runs as the unit's user with the unit's settings, not as root.
    assert "/var/lib/specd" in found["state"][0]["words"]
    assert "/var/lib/specd" in found["store"][0]["words"]
    assert container.show("specd", "ActiveState") == "active"
    assert container.show("specd-doctor.service", "LoadState") == "not-found"
    assert "truncate" not in container("ls", "/run/systemd/system", check=False)


def test_a_stopped_service_is_a_problem(container: SystemdContainer) -> None:
    found = examined(container, status=1)
    assert found["service"][0]["level"] == "problem"
    assert "journalctl -u specd" in found["service"][0]["remedy"]


def test_a_service_behind_its_socket_is_healthy_and_is_not_started(
    container: SystemdContainer,
) -> None:
    container("systemctl", "start", "specd.socket")
    found = examined(container, status=0)
    assert "waits behind specd.socket" in found["service"][0]["words"]
    assert "specd.socket holds http://127.0.0.1:11434" in found["port"][0]["words"]
    assert "network" not in found
    assert "holds http://127.0.0.1:11434" in container("/opt/specd/bin/specd", "doctor", "--here")
    assert container.show("specd", "ActiveState") == "inactive"
    container.curl("/api/version")
    assert "answers on http://127.0.0.1:11434" in examined(container, status=0)["port"][0]["words"]


def test_the_addresses_of_the_socket_are_reported(container: SystemdContainer) -> None:
    """The check runs inside the unit, where systemd cannot be queried."""
    container.drop_in(
        "specd.socket", "[Socket]\nListenStream=0.0.0.0:12345\nListenStream=/run/specd.sock\n"
    )
    container.drop_in("specd", '[Service]\nEnvironment="OLLAMA_HOST=127.0.0.1:9999"\n')
    container("systemctl", "start", "specd.socket")
    for state in ("inactive", "active"):
        assert container.show("specd", "ActiveState") == state
        found = examined(container, status=0)
        ports = " ".join(one["words"] for one in found["port"])
        assert ":12345" in ports
        assert "unix:/run/specd.sock" in ports
        assert "9999" not in ports
        assert "everyone who can reach 0.0.0.0:12345 can" in found["network"][0]["words"]
        assert "OLLAMA_HOST=127.0.0.1:9999 has no effect" in found["settings"][0]["words"]
        container("systemctl", "start", "specd")


def test_the_settings_of_a_drop_in_are_examined(container: SystemdContainer) -> None:
    container(
        "sh", "-c", "mkdir -p /srv/models/blobs /srv/models/manifests && chmod 755 /srv/models"
    )
    settings = (
        '"OLLAMA_MODELS=/srv/models" "SPECD_MDOELS=1" "OLLAMA_KEEP_ALIVE=banana" "OLLAMA_ORIGINS=*"'
    )
    container.drop_in("specd", f"[Service]\nEnvironment={settings}\n")
    container("systemctl", "start", "specd")
    found = examined(container, status=0)
    store = found["store"]
    assert "/srv/models" in store[0]["words"]
    assert any("pull, create and delete will fail" in one["words"] for one in store)
    assert any("ReadWritePaths=/srv/models" in one["remedy"] for one in store)
    banana, unknown = found["settings"]
    assert "OLLAMA_KEEP_ALIVE='banana'" in banana["words"]
    assert "SPECD_MDOELS is set, but is not a setting" in unknown["words"]
    assert "OLLAMA_ORIGINS=*" in found["network"][0]["words"]


def make(container: SystemdContainer) -> list[str]:
    """Create a model; return the last line of the answer."""
    body = json.dumps({"model": "mine", "from": "specd-demo", "system": "be short"})
    return container.curl("/api/create", "-d", body).splitlines()[-1:]


def test_the_suggested_fixes_make_a_store_elsewhere_writable(
    container: SystemdContainer,
) -> None:
    container("sh", "-c", "mkdir -p /srv/store/blobs /srv/store/manifests")
    container.drop_in("specd", '[Service]\nEnvironment="OLLAMA_MODELS=/srv/store"\n')
    container("systemctl", "start", "specd")
    [remedy] = [one["remedy"] for one in examined(container, status=0)["store"] if one["remedy"]]
    line = remedy.partition("[Service] ")[2]
    assert line == "ReadWritePaths=/srv/store"
    container.drop_in("specd", f"[Service]\n{line}\n", name="store.conf")
    for folder in ("/srv/store", "/srv/store/blobs", "/srv/store/manifests"):
        [remedy] = [
            one["remedy"] for one in examined(container, status=0)["store"] if one["remedy"]
        ]
        assert remedy.endswith(f"write access to {folder}")
        container("chown", "specd:", folder)
    assert "cannot write to" not in json.dumps(examined(container, status=0)["store"])
    container("systemctl", "restart", "specd")
    assert make(container) == ['{"status":"success"}']


def test_the_documented_fixes_make_a_store_in_a_home_usable(
    container: SystemdContainer,
) -> None:
    store = "/home/SOMEBODY/models"
    container("sh", "-ec", f"mkdir -p {store} /home/SOMEBODY/letters; chown specd: {store}")
    container("chmod", "700", "/home/SOMEBODY")
    container.drop_in("specd", f'[Service]\nEnvironment="OLLAMA_MODELS={store}"\n')
    container("systemctl", "start", "specd")
    hidden = examined(container, status=1)["store"][0]
    assert "sandbox hides /home" in hidden["words"]
    lines = documented("ProtectHome=", YOU="SOMEBODY")
    for line in lines.split():
        assert line in hidden["remedy"]
    # One half of the fix alone: an empty folder, removed with the service.
    container.drop_in("specd", "[Service]\nProtectHome=tmpfs\n", name="store.conf")
    assert "sandbox hides /home" in examined(container, status=1)["store"][0]["words"]

    container.drop_in("specd", lines, name="store.conf")
    container("systemctl", "restart", "specd")
    assert make(container) == ['{"status":"success"}']
    assert container("ls", f"{store}/manifests").split()
    seen = f"/proc/{container.pid()}/root"
    assert container("ls", f"{seen}/home/SOMEBODY").split() == ["models"]
    assert f"1 model in {store}" in examined(container, status=0)["store"][0]["words"]


def test_a_store_that_the_service_cannot_read_is_a_problem(container: SystemdContainer) -> None:
    """The command runs as root, who could read the store; the service's user cannot."""
    container("sh", "-c", "mkdir -p /srv/closed && chmod 700 /srv/closed")
    container.drop_in("specd", '[Service]\nEnvironment="OLLAMA_MODELS=/srv/closed"\n')
    container("systemctl", "start", "specd")
    found = examined(container, status=1)
    assert "specd cannot read" in found["store"][0]["words"]


def test_the_audit_of_the_service_finds_no_outbound_connection(container: SystemdContainer) -> None:
    container("systemctl", "start", "specd")
    told = json.loads(container("/opt/specd/bin/specd", "audit", "specd-demo", "--json"))
    assert told["outbound"] == []
    assert {process["role"] for process in told["processes"]} >= {"daemon", "engine"}
    assert all(path.startswith("/var/lib/specd") for path in told["written"])
