"""Check that specd reads each of Ollama's variables or logs it as ignored."""

from __future__ import annotations

from pathlib import Path

import pytest

from specd.ignored_variables import IGNORED_VARIABLES
from specd.settings import Settings, find_ineffective, variable_of
from tests.daemon_process import FAKE_ENGINE, running
from tools.settings_docs import OF_OTHERS

#: Contract 9.
OLLAMAS = """
OLLAMA_HOST OLLAMA_MODELS OLLAMA_KEEP_ALIVE OLLAMA_LOAD_TIMEOUT OLLAMA_NUM_PARALLEL
OLLAMA_MAX_LOADED_MODELS OLLAMA_MAX_QUEUE OLLAMA_CONTEXT_LENGTH OLLAMA_ORIGINS
OLLAMA_FLASH_ATTENTION OLLAMA_KV_CACHE_TYPE OLLAMA_GPU_OVERHEAD OLLAMA_SCHED_SPREAD
OLLAMA_GO_TEMPLATE OLLAMA_DEBUG OLLAMA_DEBUG_LOG_REQUESTS OLLAMA_NOPRUNE OLLAMA_NOHISTORY
OLLAMA_NO_CLOUD OLLAMA_REMOTES OLLAMA_LLM_LIBRARY OLLAMA_LIBRARY_PATH OLLAMA_VULKAN
OLLAMA_IGPU_ENABLE OLLAMA_MAX_TRANSFER_STREAMS OLLAMA_AUTH OLLAMA_CLOUD_BASE_URL OLLAMA_API_KEY
OLLAMA_EDITOR OLLAMA_EXPERIMENT LLAMA_ARG_FIT LLAMA_ARG_FIT_TARGET CUDA_VISIBLE_DEVICES
HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES GGML_VK_VISIBLE_DEVICES GPU_DEVICE_ORDINAL
HSA_OVERRIDE_GFX_VERSION HTTP_PROXY HTTPS_PROXY NO_PROXY
""".split()  # noqa: SIM905 - the form of the contract


@pytest.mark.contract("env.known")
def test_each_variable_is_either_a_setting_or_ignored() -> None:
    read = [variable_of(field) for field in Settings.model_fields.values()]
    others = [name for names in OF_OTHERS for name in names.split(", ")]
    known = [*read, *others, *IGNORED_VARIABLES]
    assert set(OLLAMAS) <= set(known)
    assert len(known) == len(set(known))


@pytest.mark.contract("env.known")
def test_ignored_variables_that_are_set_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in IGNORED_VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    assert find_ineffective() == {}
    monkeypatch.setenv("OLLAMA_VULKAN", "0")
    monkeypatch.setenv("OLLAMA_REMOTES", ' "" ')
    assert find_ineffective() == {"OLLAMA_VULKAN": IGNORED_VARIABLES["OLLAMA_VULKAN"]}


@pytest.mark.contract("env.known")
async def test_the_daemon_logs_ignored_variables_once(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        async with running(
            tmp_path, engine=FAKE_ENGINE, log=log.fileno(), OLLAMA_VULKAN="1"
        ) as daemon:
            await (await daemon.http.get("/api/version")).read()
    lines = (tmp_path / "log").read_text(encoding="utf-8").splitlines()
    [line] = [line for line in lines if "OLLAMA_VULKAN" in line]
    assert line.endswith(IGNORED_VARIABLES["OLLAMA_VULKAN"])
