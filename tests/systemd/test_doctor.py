"""`specd doctor` looks around inside the unit, with its user, its settings and its rights."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.systemd.box import Box

pytestmark = pytest.mark.system

Found = dict[str, list[dict[str, Any]]]


def examined(box: Box, *, status: int) -> Found:
    """By topic."""
    done = box.result("/opt/specd/bin/specd", "doctor", "--json")
    assert done.returncode == status, done.stdout + done.stderr
    found: Found = {}
    for finding in json.loads(done.stdout):
        found.setdefault(finding["topic"], []).append(finding)
    return found


def test_a_service_in_order_has_no_problem(box: Box) -> None:
    box("systemctl", "start", "specd")
    found = examined(box, status=0)
    assert "specd.service runs: " in found["service"][0]["words"]
    assert "answers on http://127.0.0.1:11434" in found["port"][0]["words"]
    # As the unit's user and under its settings, not as root who asks.
    assert "/var/lib/specd" in found["state"][0]["words"]
    assert "/var/lib/specd" in found["store"][0]["words"]
    assert box.show("specd", "ActiveState") == "active"
    assert box.show("specd-doctor.service", "LoadState") == "not-found"
    assert "truncate" not in box("ls", "/run/systemd/system", check=False)


def test_a_service_that_is_stopped_is_a_problem(box: Box) -> None:
    found = examined(box, status=1)
    assert found["service"][0]["level"] == "problem"
    assert "journalctl -u specd" in found["service"][0]["remedy"]


def test_what_a_drop_in_sets_is_what_is_examined(box: Box) -> None:
    box("sh", "-c", "mkdir -p /srv/models/blobs /srv/models/manifests && chmod 755 /srv/models")
    settings = '"OLLAMA_MODELS=/srv/models" "SPECD_MDOELS=1" "OLLAMA_KEEP_ALIVE=banana"'
    box.drop_in("specd", f"[Service]\nEnvironment={settings}\n")
    box("systemctl", "start", "specd")
    found = examined(box, status=0)
    store = found["store"]
    assert "/srv/models" in store[0]["words"]
    assert any("nothing can be pulled" in one["words"] for one in store)
    assert any("ReadWritePaths=/srv/models" in one["remedy"] for one in store)
    banana, unknown = found["settings"]
    assert "OLLAMA_KEEP_ALIVE='banana'" in banana["words"]
    assert "SPECD_MDOELS is set, and is no setting" in unknown["words"]


def test_a_store_that_the_unit_may_not_see_is_a_problem(box: Box) -> None:
    """Root, who asks, could read it: the service's user cannot."""
    box("sh", "-c", "mkdir -p /srv/closed && chmod 700 /srv/closed")
    box.drop_in("specd", '[Service]\nEnvironment="OLLAMA_MODELS=/srv/closed"\n')
    box("systemctl", "start", "specd")
    found = examined(box, status=1)
    assert "may not be read by specd" in found["store"][0]["words"]


def test_the_audit_of_the_service_sees_no_call_to_elsewhere(box: Box) -> None:
    box("systemctl", "start", "specd")
    told = json.loads(box("/opt/specd/bin/specd", "audit", "specd-demo", "--json"))
    assert told["outbound"] == []
    assert {process["role"] for process in told["processes"]} >= {"daemon", "engine"}
    assert all(path.startswith("/var/lib/specd") for path in told["written"])
