"""The daemon's work inside the unit: under its system call filter, in its state folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specd.pairs import HISTORY_FILE
from tests.gguf_files import CHAT_TEMPLATE, write_llama
from tests.systemd.container import SystemdContainer, reason_unavailable, specd_container

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

MODELS = "/var/lib/specd/.ollama/models"
FAKE_REGISTRY = Path(__file__).parents[1] / "registry" / "fake_registry.py"
REGISTRY = """
import asyncio, pathlib, sys
sys.path.insert(0, "/opt")
from fake_registry import FakeRegistry

async def main():
    registry = FakeRegistry()
    registry.add("library/small/latest", pathlib.Path("/opt/small.gguf").read_bytes())
    async with registry.serve():
        print(registry.url, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def working(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SystemdContainer]:
    """Start the daemon and pull the model `small` from a registry in the container."""
    if why_not := reason_unavailable():
        pytest.skip(why_not)
    gguf = write_llama(tmp_path_factory.mktemp("gguf") / "small.gguf", chat_template=CHAT_TEMPLATE)
    files = {
        "/opt/fake_registry.py": FAKE_REGISTRY.read_bytes(),
        "/opt/registry.py": REGISTRY.encode(),
        "/opt/small.gguf": gguf.read_bytes(),
    }
    with (
        specd_container(
            tmp_path_factory.mktemp("working"), files=files, SPECD_DEMO="1"
        ) as container,
        container.popen("/opt/specd/bin/python", "/opt/registry.py") as registry,
    ):
        assert registry.stdout is not None
        url = registry.stdout.readline().strip()
        container("systemctl", "start", "specd")
        pulled = post(container, "pull", model=f"{url}/library/small:latest", insecure=True)
        assert pulled[-1] == {"status": "success"}
        post(container, "copy", source=f"{url}/library/small:latest", destination="small")
        yield container
        # In none of the tests was a system call denied that the daemon or llama.cpp needs.
        assert "Traceback" not in container.log()
        assert container.show("specd", "NRestarts") == "0"
        registry.kill()


def post(container: SystemdContainer, what: str, **body: Any) -> list[dict[str, Any]]:
    said = container.curl(f"/api/{what}", "-d", json.dumps(body))
    lines = [json.loads(line) for line in said.splitlines()]
    assert not any("error" in line for line in lines), lines
    return lines


def test_pulled_models_belong_to_the_user_of_the_service(working: SystemdContainer) -> None:
    owners = set(working("find", MODELS, "-printf", "%u:%g %m\n").split("\n")) - {""}
    assert {line.split()[0] for line in owners} == {"specd:specd"}
    assert not {line for line in owners if int(line.split()[1], 8) & 0o022}


def test_a_pair_answers_with_its_drafter(working: SystemdContainer) -> None:
    [said] = post(
        working, "generate", model="specd-demo", prompt="def f", stream=False,
        options={"num_predict": 16, "temperature": 0},
    )  # fmt: skip
    assert said["eval_count"] == 16
    assert said["speculation"]["pair_source"]
    assert said["speculation"].get("reason") != "drafter_failed"


def test_an_untrusted_template_runs_in_a_limited_process(working: SystemdContainer) -> None:
    """The child process limits itself by setrlimit and setitimer."""
    [said] = post(
        working, "chat", model="small", stream=False, options={"num_predict": 4},
        messages=[{"role": "user", "content": "hello"}],
    )  # fmt: skip
    assert said["done"]
    assert any("specd.prompt" in command for command in working.processes().values())


def test_a_schema_is_compiled_in_a_limited_process(working: SystemdContainer) -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
    [said] = post(
        working, "generate", model="specd-demo", prompt="x", stream=False, format=schema,
        options={"num_predict": 64, "temperature": 0},
    )  # fmt: skip
    assert json.loads(said["response"])["n"] in {1, 2}


def test_a_request_may_set_its_number_of_threads(working: SystemdContainer) -> None:
    [said] = post(
        working, "generate", model="small", prompt="x", stream=False,
        options={"num_predict": 4, "num_thread": 3},
    )  # fmt: skip
    assert said["done"]


def test_a_model_is_quantized_and_pushed_and_deleted(working: SystemdContainer) -> None:
    """An engine process quantizes it; the service's own key signs the push."""
    made = post(working, "create", model="smaller", **{"from": "small"}, quantize="q8_0")
    assert made[-1] == {"status": "success"}
    [shown] = post(working, "show", model="smaller")
    assert shown["details"]["quantization_level"] == "Q8_0"
    [said] = post(
        working, "generate", model="smaller", prompt="x", stream=False, options={"num_predict": 2}
    )
    assert said["done"]
    registry = next(
        model["name"].partition("/")[0]
        for model in json.loads(working.curl("/api/tags"))["models"]
        if model["name"].startswith("127.0.0.1")
    )
    name = f"http://{registry}/library/smaller:latest"
    post(working, "copy", source="smaller", destination=name)
    assert post(working, "push", model=name, insecure=True)[-1] == {"status": "success"}
    working.curl("/api/delete", "-X", "DELETE", "-d", json.dumps({"model": "smaller"}))


def test_the_history_of_pairs_is_stored_in_the_state_folder(working: SystemdContainer) -> None:
    post(
        working, "generate", model="specd-demo", prompt="def f", stream=False, keep_alive=0,
        options={"num_predict": 16},
    )  # fmt: skip
    history = f"/var/lib/specd/{HISTORY_FILE}"
    working.wait_until(
        lambda: working.result("test", "-s", history).returncode == 0, what="it is written down"
    )


def test_a_foreign_host_name_is_refused_with_status_403(working: SystemdContainer) -> None:
    """The daemon asks the kernel for this machine's addresses."""
    status = working.curl(
        "/api/version", "-o", "/dev/null", "-w", "%{http_code}", "-H", "Host: 8.8.8.8"
    )
    assert status == "403"
