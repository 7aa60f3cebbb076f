"""The plan of `specd migrate`: what it copies from Ollama, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from specd.errors import InstallError
from specd.install import (
    apply_plan,
    gather_facts,
    layout,
    plan_migrate,
    read_ollama_service,
    read_unit_files,
    service_of_store,
)
from specd.install.migrate_plan import drop_in_text
from specd.install.ollama_service import OllamaService
from specd.port_owner import PortOwner
from tests.install.fake_host_system import FakeHostSystem, migration, words, write_small_sources

pytestmark = pytest.mark.usefixtures("answering")


def test_a_migration_copies_ollamas_settings_user_and_store(
    with_ollama: FakeHostSystem, tmp_path: Path
) -> None:
    plan = migration(with_ollama, tmp_path / "sources")
    apply_plan(plan, with_ollama, print)
    text = with_ollama.at(layout.DROP_IN).read_text().splitlines()
    assert "User=nobody" in text
    assert "SupplementaryGroups=specd render video" in text
    assert 'ReadWritePaths="/var/lib/ollama/.ollama"' in text
    assert 'RequiresMountsFor="/var/lib/ollama/.ollama/models"' in text
    assert 'Environment="OLLAMA_MODELS=/var/lib/ollama/.ollama/models"' in text
    assert 'Environment="OLLAMA_ORIGINS=a b"' in text
    assert not [line for line in text if "PATH=/bin" in line or "SECRET" in line]
    at = text.index("EnvironmentFile=")
    assert text[at + 1 : at + 3] == [
        "EnvironmentFile=-/etc/specd/ollama.env",
        "EnvironmentFile=-/etc/specd/specd.env",
    ]
    assert with_ollama.at(layout.OLLAMA_ENV_FILE).read_text() == 'OLLAMA_KEEP_ALIVE="7m"\n'
    assert with_ollama.at(layout.OLLAMA_ENV_FILE).stat().st_mode & 0o777 == 0o640
    said = words(plan)
    assert "OLLAMA_VULKAN is copied but has no effect" in said
    assert "not copied, since only Ollama's program uses them: SECRET" in said


def test_a_dry_run_without_systemd_reads_the_units_files(
    with_ollama: FakeHostSystem, tmp_path: Path
) -> None:
    asked = read_ollama_service(with_ollama)
    assert read_ollama_service(with_ollama, settings=read_unit_files(with_ollama)) == asked
    with_ollama.at("/run/systemd/system").rmdir()
    facts = gather_facts(with_ollama, dry_run=True)
    said = words(plan_migrate(facts, asked, write_small_sources(tmp_path / "sources")))
    assert "systemctl stop ollama.service" in said
    assert "the states of the units are unknown" in said


def test_a_dynamic_user_in_unit_files_is_refused(with_ollama: FakeHostSystem) -> None:
    path = f"{layout.UNITS}/{layout.OLLAMA}.d/zz.conf"
    with_ollama.put(path, "[Service]\nDynamicUser=on\n")
    with pytest.raises(InstallError, match="has DynamicUser=yes"):
        read_ollama_service(with_ollama, settings=read_unit_files(with_ollama))


def test_the_service_sees_only_the_store_of_a_home(with_ollama: FakeHostSystem) -> None:
    home = with_ollama.at("/home/Me/models")
    home.mkdir(parents=True)
    found = read_ollama_service(with_ollama, Path("/home/Me/models"))
    text = drop_in_text(found).splitlines()
    assert "ProtectHome=tmpfs" in text
    assert 'BindPaths="/home/Me/models"' in text
    assert 'ReadWritePaths="/var/lib/ollama/.ollama"' in text  # the keys are where they were


def test_a_drop_in_escapes_values_as_systemd_requires() -> None:
    store = Path("/home/Me/a:b's 5%")
    found = OllamaService("a%me", "b%me", store, folders=(store, Path("/mnt/a:b 5%")))
    text = drop_in_text(found).splitlines()
    assert {"User=a%%me", "Group=b%%me"} <= set(text)
    assert 'RequiresMountsFor="/home/Me/a:b\'s 5%%"' in text
    assert 'BindPaths="/home/Me/a\\:b\'s 5%%"' in text
    assert 'ReadWritePaths="/mnt/a:b 5%%"' in text


def test_links_in_the_store_are_followed(with_ollama: FakeHostSystem) -> None:
    with_ollama.at("/mnt/disk").mkdir(parents=True)
    models = with_ollama.at("/var/lib/ollama/.ollama/models")
    models.rename(with_ollama.at("/mnt/disk/models"))
    models.symlink_to(with_ollama.at("/mnt/disk/models"))
    text = drop_in_text(read_ollama_service(with_ollama)).splitlines()
    assert 'ReadWritePaths="/mnt/disk/models"' in text
    assert 'Environment="OLLAMA_MODELS=/var/lib/ollama/.ollama/models"' in text


def test_a_folder_name_cannot_add_a_line_to_a_unit(
    with_ollama: FakeHostSystem, tmp_path: Path
) -> None:
    evil = with_ollama.at("/home/Me") / "x\nExecStartPre=+evil.sh\nq\x1b[2J"
    evil.mkdir(parents=True)
    blobs = with_ollama.at("/var/lib/ollama/.ollama/models/blobs")
    blobs.rename(blobs.with_name("moved"))
    blobs.symlink_to(evil)
    with pytest.raises(InstallError, match=r"x\\nExecStartPre=") as caught:
        migration(with_ollama, tmp_path / "sources")
    assert not {"\n", "\x1b"} & set(str(caught.value))
    with pytest.raises(InstallError, match=r"evil\\n"):
        read_ollama_service(with_ollama, Path("/evil\n"))
    with pytest.raises(InstallError, match=r"evil\\n"):
        service_of_store(with_ollama, Path("/evil\n"))


def test_a_setting_with_a_control_character_is_refused_by_name(
    with_ollama: FakeHostSystem, tmp_path: Path
) -> None:
    with_ollama.put("/etc/default/ollama", "OLLAMA_KEEP_ALIVE='7m\nUser=root'\n")
    with pytest.raises(InstallError, match="the variable OLLAMA_KEEP_ALIVE"):
        migration(with_ollama, tmp_path / "sources")


def test_a_store_on_the_command_line_overrides_ollamas_files(
    with_ollama: FakeHostSystem, tmp_path: Path
) -> None:
    named = Path("/mnt/disk/models")
    with_ollama.at(str(named)).mkdir(parents=True)
    with_ollama.put("/etc/default/ollama", "OLLAMA_MODELS=/var/lib/x\nOLLAMA_KEEP_ALIVE=7m\n")
    found = read_ollama_service(with_ollama, named)
    plan = plan_migrate(gather_facts(with_ollama), found, write_small_sources(tmp_path))
    apply_plan(plan, with_ollama, print)
    assert with_ollama.at(layout.OLLAMA_ENV_FILE).read_text() == 'OLLAMA_KEEP_ALIVE="7m"\n'
    text = with_ollama.at(layout.DROP_IN).read_text()
    assert f'Environment="OLLAMA_MODELS={named}"' in text
    assert found.variables["OLLAMA_MODELS"] == str(named)


def test_a_store_in_specd_env_has_priority_and_gives_a_remark(
    with_ollama: FakeHostSystem, tmp_path: Path
) -> None:
    with_ollama.put(layout.ENV_FILE, "OLLAMA_MODELS=/elsewhere\n")
    assert "OLLAMA_MODELS: /etc/specd/specd.env has another value" in words(
        migration(with_ollama, tmp_path / "sources")
    )


def test_settings_in_specd_env_have_priority_and_give_a_remark(
    with_ollama: FakeHostSystem, tmp_path: Path
) -> None:
    with_ollama.put(layout.ENV_FILE, "OLLAMA_KEEP_ALIVE=1m\nOLLAMA_HOST=127.0.0.1:4242\n")
    said = words(migration(with_ollama, tmp_path / "sources"))
    assert "OLLAMA_KEEP_ALIVE: /etc/specd/specd.env has another value" in said
    assert "http://127.0.0.1:4242" in said


@pytest.mark.parametrize(
    "properties,said",
    [
        ({"User": ""}, "works as root here"),
        ({"User": "no-such-user"}, "no such user"),
        ({"DynamicUser": "yes"}, "DynamicUser=yes"),
        ({"Environment": "OLLAMA_MODELS=/mnt/none"}, "is not there: is its disk mounted"),
    ],
)
def test_a_service_that_cannot_be_replaced_is_an_error(
    with_ollama: FakeHostSystem, properties: dict[str, str], said: str
) -> None:
    with_ollama.properties[layout.OLLAMA] |= properties
    with pytest.raises(InstallError, match=said):
        read_ollama_service(with_ollama)


def test_an_address_held_by_others_is_an_error(with_ollama: FakeHostSystem, tmp_path: Path) -> None:
    found, what = read_ollama_service(with_ollama), write_small_sources(tmp_path)
    with pytest.raises(InstallError, match="taken by nginx"):
        plan_migrate(gather_facts(with_ollama), found, what, holder=PortOwner(7, "nginx", ""))
    with_ollama.put(f"{layout.UNITS}/{layout.SOCKET}", "")
    with_ollama.active.add(layout.SOCKET)
    with pytest.raises(InstallError, match=r"disable --now specd\.socket"):
        plan_migrate(gather_facts(with_ollama), found, what)
    with_ollama.active.remove(layout.SOCKET)
    with_ollama.enabled.add(layout.SOCKET)
    with pytest.raises(InstallError, match=r"disable --now specd\.socket"):
        plan_migrate(gather_facts(with_ollama), found, what)


def test_ollama_cannot_start_while_specd_replaces_it(
    with_ollama: FakeHostSystem, tmp_path: Path
) -> None:
    apply_plan(migration(with_ollama, tmp_path / "sources"), with_ollama, print)
    assert (with_ollama.active, with_ollama.enabled) == (
        {layout.SERVICE},
        {layout.SERVICE, layout.OLLAMA},
    )
    pause = with_ollama.at(layout.PAUSE).read_text()
    assert f"ConditionPathExists=!{layout.DROP_IN}" in pause
