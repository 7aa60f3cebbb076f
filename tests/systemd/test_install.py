"""Test `specd install`, `migrate` and their reversal on a real systemd, from this checkout."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
import pytest

from tests.gguf_files import OllamaStore, write_llama
from tests.systemd.container import ROOT, Contents, SystemdContainer, reason_unavailable

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

SPECD = (sys.executable, "-m", "specd")
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "env", "HOME=/nowhere")
INSTALL_S = 300.0

#: A Python that Ollama's user can run too.
PYTHON = shutil.which("python3", path="/usr/bin:/usr/local/bin") or ""

PORT = 12434
STORE = "/srv/models"
HOME = "/var/lib/ollama"
#: A drop-in of Ollama's unit as a user may have written it; its values are hard to quote.
SETTINGS = f"""
[Service]
Environment="OLLAMA_HOST=127.0.0.1:{PORT}" OLLAMA_MODELS={STORE}
Environment="OLLAMA_ORIGINS=https://a b.example,https://%%41.example"
Environment="OLLAMA_FUTURE=\\"x\\" $y \\\\z"
Environment=OLLAMA_VULKAN=1
EnvironmentFile=-/etc/default/ollama
"""
UNIT = f"""
[Unit]
Description=Ollama Service
[Service]
ExecStart={PYTHON} /srv/ollama.py
User=ollama
Group=ollama
Restart=always
RestartSec=3
[Install]
WantedBy=default.target
"""
#: A stand-in for Ollama that listens on OLLAMA_HOST and identifies itself.
PROGRAM = """
import http.server, os
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"I am Ollama")
host, _, port = os.environ["OLLAMA_HOST"].partition(":")
http.server.ThreadingHTTPServer((host, int(port)), Handler).serve_forever()
"""
#: A program that prints the rights, owners, times and contents of files.
LOOK = """
import hashlib, json, pathlib, sys
def fact(p):
    s = p.lstat()
    text = str(p.readlink()) if p.is_symlink() else ""
    if p.is_file():
        text += hashlib.sha256(p.read_bytes()).hexdigest()
    return [oct(s.st_mode), s.st_uid, s.st_gid, s.st_mtime_ns if not p.is_dir() else 0, text]
paths = [q for a in sys.argv[1:] for p in [pathlib.Path(a)] for q in [p, *sorted(p.rglob("*"))]]
print(json.dumps({str(p): fact(p) for p in paths}))
"""
OF_OLLAMA = (
    STORE, HOME, "/etc/default/ollama", "/etc/systemd/system/ollama.service",
    "/etc/systemd/system/ollama.service.d", "/etc/systemd/system/default.target.wants",
)  # fmt: skip


@pytest.fixture
def container(tmp_path: Path) -> Iterator[SystemdContainer]:
    """Boot a container with this checkout and its environment at their paths, without specd."""
    if why_not := reason_unavailable():
        pytest.skip(why_not)
    wanted = {ROOT, Path(sys.prefix), Path(sys.base_prefix).resolve()}
    binds = {path: str(path) for path in wanted if not path.is_relative_to("/usr")}
    files: dict[str, Contents] = {"/etc/sysusers.d/ollama.conf": f"u ollama - Ollama {HOME}\n"}
    with SystemdContainer.boot(tmp_path / "box", files=files, binds=binds) as booted_container:
        booted_container("ldconfig")
        yield booted_container


@pytest.fixture
def ollama(container: SystemdContainer, tmp_path: Path) -> dict[str, object]:
    """Start a stand-in for Ollama with a model, keys and settings; return its files' state."""
    if not PYTHON:
        pytest.skip("the stand-in for Ollama needs a Python in /usr")
    container("systemd-sysusers")
    put_store(container, STORE, tmp_path)
    for path, text in {"/srv/ollama.py": PROGRAM, f"{HOME}/.ollama/id_ed25519": "a key\n"}.items():
        container.write(path, text)
    container.write("/etc/default/ollama", "OLLAMA_KEEP_ALIVE=7m\nHTTPS_PROXY='http://a:b@c'\n")
    container("chown", "-R", "ollama:ollama", STORE, HOME)
    container("chmod", "0700", f"{HOME}/.ollama")
    container("chmod", "0600", f"{HOME}/.ollama/id_ed25519")
    container.write("/etc/systemd/system/ollama.service", UNIT)
    container.drop_in("ollama.service", SETTINGS)
    container("systemctl", "enable", "--now", "ollama")
    container.wait_until(
        lambda: answer(container) == "I am Ollama", what="Ollama answers", unit="ollama"
    )
    return files_of_ollama(container)


def put_store(container: SystemdContainer, path: str, scratch: Path) -> None:
    """Write a store with one model, owned by root."""
    store = OllamaStore(scratch / "store")
    store.add("tiny", weights=write_llama(scratch / "tiny.gguf"))
    for source in sorted(store.root.rglob("*")):
        if source.is_file():
            _put(container, f"{path}/{source.relative_to(store.root)}", source)


def _put(container: SystemdContainer, path: str, source: Path) -> None:
    """Copy a binary file into the container through its root folder in /proc."""
    pid = (container.folder / "pid").read_text().strip()
    target = Path(f"/proc/{pid}/root") / path.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(source.read_bytes())


def files_of_ollama(container: SystemdContainer, *paths: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(
        container(sys.executable, "-c", LOOK, *(paths or OF_OLLAMA))
    )
    return found


def answer(container: SystemdContainer, path: str = "/", port: int = PORT) -> str:
    return container.curl(f"http://127.0.0.1:{port}{path}", check=False)


def models(container: SystemdContainer, port: int = PORT) -> list[str]:
    return [model["name"] for model in json.loads(answer(container, "/api/tags", port))["models"]]


def environment(container: SystemdContainer) -> Mapping[str, str]:
    """Return the environment of the running daemon."""
    script = f"print(open('/proc/{container.pid()}/environ').read(), end='')"
    pairs = container(sys.executable, "-c", script).split("\0")
    return dict(pair.split("=", 1) for pair in pairs if pair)


def check_reload(container: SystemdContainer) -> None:
    """Check that the service, as Ollama's user, reloads settings owned by root and specd."""
    owner = container("stat", "-c", "%a %U %G", "/etc/specd/specd.env").split()
    assert owner == ["640", "root", "specd"]
    assert container("stat", "-c", "%U", f"/proc/{container.pid()}").strip() == "ollama"
    container("sh", "-c", "echo OLLAMA_MAX_QUEUE=77 >>/etc/specd/specd.env")
    container("systemctl", "reload", "specd")
    container.wait_until(
        lambda: "reloaded: OLLAMA_MAX_QUEUE" in container.log(), what="it reads its settings"
    )


def who_starts_at_boot(container: SystemdContainer) -> set[str]:
    units = ("specd.service", "specd.socket", "ollama.service")
    return {unit for unit in units if container.show(unit, "UnitFileState") == "enabled"}


def test_specd_is_installed_and_updated_and_removed(container: SystemdContainer) -> None:
    plan = container(*SPECD, "install", "--dry-run", timeout_s=INSTALL_S)
    assert "write /etc/systemd/system/specd.service" in plan
    # There is no bus here, and only root may use systemd's private socket.  Python may be in a
    # home folder.
    container("chmod", "0711", "/root")
    asked = container(*NOBODY, *SPECD, "install", "--dry-run", timeout_s=INSTALL_S)
    assert "the states of the units are unknown" in asked
    assert [line for line in asked.splitlines() if ". write" in line] == [
        line for line in plan.splitlines() if ". write" in line
    ]
    assert container.show("specd", "LoadState") == "not-found"

    container(*SPECD, "install", "--yes", timeout_s=INSTALL_S)
    assert (container.show("specd", "ActiveState"), container.show("specd", "UnitFileState")) == (
        "active",
        "enabled",
    )
    assert "specd_version" in json.loads(answer(container, "/api/version", 11434))
    first = container.pid()
    assert (
        container("readlink", "-f", f"/proc/{first}/exe").strip().startswith(("/usr", "/opt/specd"))
    )
    assert environment(container)["HOME"] == "/var/lib/specd"
    assert container("stat", "-c", "%A", "/etc/specd/specd.env").strip().endswith("---")
    assert "test" not in container("ls", "/opt/specd/lib").split()

    container("sh", "-c", "echo OLLAMA_KEEP_ALIVE=9m >>/etc/specd/specd.env")
    container("sh", "-c", "echo '# by hand' >>/etc/systemd/system/specd.service")
    container(*SPECD, "install", "--yes", timeout_s=INSTALL_S)
    assert container.pid() not in {0, first}
    assert environment(container)["OLLAMA_KEEP_ALIVE"] == "9m"
    assert "# by hand" in container("cat", "/etc/systemd/system/specd.service.kept-by-specd")
    assert container("ls", "/opt").split() == ["specd"]

    # The installed program removes its own files.
    container("/opt/specd/bin/specd", "uninstall", "--yes", timeout_s=INSTALL_S)
    assert container.show("specd", "LoadState") == "not-found"
    assert container("ls", "-A", "/opt") == ""
    left = container("find", "/etc/systemd/system", "-name", "specd*").split()
    assert left == ["/etc/systemd/system/specd.service.kept-by-specd"]
    assert "specd.env" in container("ls", "/etc/specd")
    container("id", "specd")

    container(*SPECD, "install", "--no-start", "--yes", timeout_s=INSTALL_S)
    container(*SPECD, "uninstall", "--purge", "--yes", timeout_s=INSTALL_S)
    for gone in (("id", "specd"), ("getent", "group", "specd"), ("ls", "/var/lib/specd-install")):
        assert container.result(*gone).returncode != 0, gone


def test_ollama_is_replaced_and_restored(
    container: SystemdContainer, ollama: Mapping[str, object]
) -> None:
    taken = container.result(*SPECD, "install", "--yes", timeout_s=INSTALL_S)
    # specd's port differs from Ollama's, so the installation is allowed.
    assert taken.returncode == 0, taken.stderr
    # From now on, both start at boot and use the same port.
    container("systemctl", "stop", "specd")
    container("sh", "-c", f"echo OLLAMA_HOST=127.0.0.1:{PORT} >>/etc/specd/specd.env")

    plan = container(*SPECD, "migrate", "--dry-run", timeout_s=INSTALL_S)
    assert "OLLAMA_VULKAN is copied but has no effect" in plan
    assert files_of_ollama(container) == ollama

    container(*SPECD, "migrate", "--yes", timeout_s=INSTALL_S)
    assert models(container) == ["tiny:latest"]
    assert container.show("ollama", "ActiveState") == "inactive"
    has = environment(container)
    assert has["OLLAMA_ORIGINS"] == "https://a b.example,https://%41.example"
    assert has["OLLAMA_FUTURE"] == '"x" $y \\z'
    assert (has["OLLAMA_KEEP_ALIVE"], has["HTTPS_PROXY"]) == ("7m", "http://a:b@c")
    assert has["HOME"] == HOME
    body = json.dumps({"model": "tiny", "prompt": "a", "options": {"num_predict": 2}})
    last = container.curl(f"http://127.0.0.1:{PORT}/api/generate", "-d", body).splitlines()[-1]
    assert json.loads(last)["done"], last
    check_reload(container)
    # An update of Ollama does this.
    container("systemctl", "restart", "ollama")
    assert container.show("ollama", "ActiveState") == "inactive"
    # Ollama will own the files that are created here.
    made = json.dumps({"model": "mine", "from": "tiny", "system": "be short"})
    container.curl(f"http://127.0.0.1:{PORT}/api/create", "-d", made)
    owners = container("find", STORE, "!", "-user", "ollama")
    assert owners == ""
    container.curl(f"http://127.0.0.1:{PORT}/api/delete", "-X", "DELETE", "-d", '{"model": "mine"}')

    said = container(*SPECD, "migrate", "--back", "--yes", timeout_s=INSTALL_S)
    assert "both started at boot before; now only ollama.service does" in said
    container.wait_until(
        lambda: answer(container) == "I am Ollama", what="Ollama answers again", unit="ollama"
    )
    assert container.show("specd", "ActiveState") == "inactive"
    assert who_starts_at_boot(container) == {"ollama.service"}
    assert files_of_ollama(container) == ollama

    container(*SPECD, "migrate", "--yes", timeout_s=INSTALL_S)
    assert models(container) == ["tiny:latest"]
    container(*SPECD, "uninstall", "--yes", "--purge", timeout_s=INSTALL_S)
    container.wait_until(
        lambda: answer(container) == "I am Ollama", what="Ollama answers again", unit="ollama"
    )
    assert files_of_ollama(container) == ollama
    assert container.result("id", "specd").returncode != 0


def test_a_failed_or_killed_migration_leaves_ollama_or_can_be_repaired(
    container: SystemdContainer, ollama: Mapping[str, object]
) -> None:
    container.write("/etc/specd/specd.env", "SPECD_API_KEYS=short\n")
    failed = container.result(*SPECD, "migrate", "--yes", timeout_s=INSTALL_S)
    assert failed.returncode == 1
    assert "SPECD_API_KEYS" in failed.stderr  # the daemon's last log line
    assert "all steps were undone" in failed.stderr
    assert answer(container) == "I am Ollama"
    assert files_of_ollama(container) == ollama
    assert container.show("specd", "LoadState") == "not-found"
    assert container("ls", "-A", "/opt") == ""
    assert container("find", "/etc/systemd/system", "-name", "specd*") == ""

    container("rm", "/etc/specd/specd.env")
    cut = container.popen(*SPECD, "migrate", "--yes")
    container.wait_until(
        lambda: container.show("ollama", "ActiveState") == "inactive", what="Ollama was stopped"
    )
    for process in psutil.Process(cut.pid).children(recursive=True):
        process.kill()
    cut.communicate()
    container("systemctl", "stop", "specd")  # or systemd would start it again
    assert answer(container) == ""
    container(*SPECD, "migrate", "--yes", timeout_s=INSTALL_S)
    assert models(container) == ["tiny:latest"]
    container(*SPECD, "migrate", "--back", "--yes", timeout_s=INSTALL_S)
    container.wait_until(
        lambda: answer(container) == "I am Ollama", what="Ollama answers again", unit="ollama"
    )
    assert files_of_ollama(container) == ollama


def test_a_python_in_a_home_serves_a_store_in_a_home(
    container: SystemdContainer, tmp_path: Path
) -> None:
    """The machine has no ollama.service, and the Python of the tests runs specd."""
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    if not Path(sys.base_prefix).resolve().is_relative_to("/usr"):
        for place in ("/usr/bin", "/usr/local/bin"):
            if Path(place, version).exists():
                container("mount", "--bind", "/dev/null", f"{place}/{version}")
    container.write("/etc/sysusers.d/me.conf", "u me - Me /home/Me\n")
    container("systemd-sysusers", "/etc/sysusers.d/me.conf")
    put_store(container, "/home/Me/.ollama/models", tmp_path)
    container.write("/home/Me/letter", "private")
    container("chown", "-R", "me:me", "/home/Me")
    container("chmod", "-R", "go=", "/home/Me")
    before = files_of_ollama(container, "/home/Me")

    named = ("migrate", "--store", "/home/Me/.ollama/models", "--yes")
    container(*SPECD, *named, timeout_s=INSTALL_S)
    assert models(container, 11434) == ["tiny:latest"]
    seen = f"/proc/{container.pid()}/root"
    assert container("ls", "-A", f"{seen}/home/Me").split() == [".ollama"]
    body = json.dumps({"model": "tiny", "prompt": "a", "options": {"num_predict": 2}})
    said = json.loads(container.curl("/api/generate", "-d", body).splitlines()[-1])
    assert said["done"], said
    assert files_of_ollama(container, "/home/Me") == before

    container(*SPECD, "migrate", "--back", "--yes", timeout_s=INSTALL_S)
    assert container.show("specd", "ActiveState") == "inactive"
    assert container.show("specd", "User") == "specd"
