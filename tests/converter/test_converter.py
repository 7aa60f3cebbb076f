"""Conversion of transformers models by llama.cpp's converter, in its own environment.

The environment takes gigabytes where pip has no PyTorch for processors alone, so it is prepared in
CI; elsewhere `specd create --prepare-converter` does it, and these tests run from then on.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from specd.converter import (
    ConversionSource,
    Environment,
    conversion,
    convert,
    find_environment,
    prepare,
)
from specd.errors import InvalidRequest
from specd.store.gguf import read_header
from tests.daemon_process import Daemon, running

PROMPT, N_TOKENS = "The input tensor", 24
PROGRAM = Path(conversion.__file__).with_name("program.py")
MAKE = Path(__file__).parent / "programs" / "tiny_model.py"

pytestmark = pytest.mark.timeout(600)  # the first one waits for the environment to be made


@dataclass(frozen=True)
class Tiny:
    """folder: has model/ and lora/.  plain, adapted: transformers' answers to PROMPT."""

    folder: Path
    plain: str
    adapted: str

    def files(self, name: str) -> dict[str, Path]:
        return {path.name: path for path in (self.folder / name).iterdir()}


@pytest.fixture(scope="session")
def converter_dir() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "specd" / "converter"


@pytest.fixture(scope="session")
def environment(converter_dir: Path) -> Environment:
    if find_environment(converter_dir) is None and not os.environ.get("CI"):
        pytest.skip("`specd create --prepare-converter` prepares the converter")
    return prepare(converter_dir)


@pytest.fixture(scope="session")
def tiny(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    folder = tmp_path_factory.mktemp("tiny")
    command = (environment.python, "-I", MAKE, folder, PROMPT, str(N_TOKENS))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout.splitlines()[-1])
    assert answers["plain"] != answers["adapted"]
    return Tiny(folder, **answers)


# --------------------------------------------------------------------- through specd


@pytest.fixture
async def daemon(tmp_path: Path, converter_dir: Path) -> AsyncIterator[Daemon]:
    async with running(
        tmp_path,
        SPECD_CONVERTER_DIR=str(converter_dir),
        OLLAMA_KV_CACHE_TYPE="f32",
        OLLAMA_FLASH_ATTENTION="0",
    ) as daemon:
        yield daemon


async def answer(daemon: Daemon, model: str) -> str:
    options = {"temperature": 0, "num_predict": N_TOKENS}
    lines = await daemon.answer(PROMPT, model=model, raw=True, options=options)
    return "".join(line["response"] for line in lines)


async def upload(daemon: Daemon, files: Mapping[str, Path]) -> dict[str, str]:
    """Return the digests by file name."""
    digests = {}
    for name, path in files.items():
        data = path.read_bytes()
        digests[name] = f"sha256:{hashlib.sha256(data).hexdigest()}"
        async with daemon.http.post(f"/api/blobs/{digests[name]}", data=data) as reply:
            assert reply.status in {200, 201}
    return digests


@pytest.mark.native
@pytest.mark.contract("create.safetensors")
async def test_the_converted_model_gives_the_same_text(daemon: Daemon, tiny: Tiny) -> None:
    files = await upload(daemon, tiny.files("model"))
    adapters = await upload(daemon, tiny.files("lora"))
    for name, fields in {
        "plain": {"files": files},
        "adapted": {"files": files, "adapters": adapters},
    }.items():
        body = {"model": name, "quantize": "F32", **fields}
        async with daemon.http.post("/api/create", json=body) as reply:
            lines = [json.loads(line) async for line in reply.content]
        assert lines[-1] == {"status": "success"}, lines
        done = [line for line in lines if line["status"] == "converting model"]
        assert done[-1]["completed"] == done[-1]["total"] > 0
        assert await answer(daemon, name) == getattr(tiny, name)


@pytest.mark.native
async def test_the_command_converts_a_folder_by_itself(
    daemon: Daemon, tiny: Tiny, tmp_path: Path, converter_dir: Path
) -> None:
    (tmp_path / "Modelfile").write_text(
        f"FROM {tiny.folder / 'model'}\nADAPTER {tiny.folder / 'lora'}\n"
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "specd", "create", "made", "-q", "F32"),
        *("-f", str(tmp_path / "Modelfile")),
        env=os.environ | {"OLLAMA_HOST": daemon.url, "SPECD_CONVERTER_DIR": str(converter_dir)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    printed = (await process.communicate())[0].decode()
    assert process.returncode == 0, printed
    assert "converting" in printed
    assert await answer(daemon, "made") == tiny.adapted
    assert not left_behind(converter_dir)


def left_behind(converter_dir: Path) -> list[Path]:
    return list(converter_dir.glob("gguf-*"))


# ------------------------------------------------------------------------- one process


async def converted(
    environment: Environment, source: ConversionSource, target: Path
) -> list[tuple[int, int]]:
    return [step async for step in convert(source, target, environment=environment)]


def changed(tiny: Tiny, folder: Path, **config: object) -> ConversionSource:
    """Return the tiny model with another config.json."""
    files = tiny.files("model")
    folder.mkdir()
    said = json.loads(files["config.json"].read_bytes()) | config
    (folder / "config.json").write_text(json.dumps(said))
    return ConversionSource(files=files | {"config.json": folder / "config.json"})


async def test_32_bit_weights_become_16_bit(
    environment: Environment, tiny: Tiny, tmp_path: Path
) -> None:
    target = tmp_path / "made.gguf"
    steps = await converted(environment, ConversionSource(files=tiny.files("model")), target)
    assert steps[-1][0] == steps[-1][1]
    header = read_header(target)
    assert header.architecture == "llama"
    assert {tensor.type for tensor in header.tensors} == {"F16", "F32"}


async def test_an_unsupported_family_is_an_invalid_request(
    environment: Environment, tiny: Tiny, tmp_path: Path
) -> None:
    source = changed(tiny, tmp_path / "other", architectures=["NoSuchForCausalLM"])
    with pytest.raises(InvalidRequest, match="NoSuchForCausalLM is not supported"):
        await converted(environment, source, tmp_path / "made.gguf")


async def test_a_damaged_file_is_an_invalid_request(
    environment: Environment, tiny: Tiny, tmp_path: Path
) -> None:
    (tmp_path / "cut").write_bytes(tiny.files("model")["model.safetensors"].read_bytes()[:1000])
    source = ConversionSource(files=tiny.files("model") | {"model.safetensors": tmp_path / "cut"})
    with pytest.raises(InvalidRequest, match="cannot convert these safetensors: "):
        await converted(environment, source, tmp_path / "made.gguf")


async def test_closing_the_conversion_ends_its_process(
    environment: Environment, tiny: Tiny, tmp_path: Path
) -> None:
    source = ConversionSource(files=tiny.files("model"))
    async with aclosing(convert(source, tmp_path / "made.gguf", environment=environment)) as steps:
        await anext(steps)
        [child] = converters()
    assert not child.is_running()


def converters() -> list[psutil.Process]:
    children = psutil.Process().children()
    return [one for one in children if any("program.py" in word for word in one.cmdline())]


def run(environment: Environment, script: Path, *arguments: object) -> subprocess.Popen[str]:
    """Start program.py as a conversion does, with a limit of 2 GiB."""
    limits = (2**31, 600, 2**30)
    return subprocess.Popen(
        [
            str(word)
            for word in (environment.python, "-I", PROGRAM, script, *limits, "--", *arguments)
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_models_own_code_does_not_run(
    environment: Environment, tiny: Tiny, tmp_path: Path
) -> None:
    """Put the code into the model's folder by hand: a ConversionSource accepts no .py file."""
    source = changed(tiny, tmp_path / "model", architectures=["DreamModel"])
    for name in ("model.safetensors", "generation_config.json"):
        (tmp_path / "model" / name).symlink_to(source.files[name])
    # For this family, llama.cpp's converter calls AutoTokenizer with trust_remote_code.
    told = {"auto_map": {"AutoTokenizer": ["evil.Tokenizer", None]}}
    (tmp_path / "model" / "tokenizer_config.json").write_text(json.dumps(told))
    (tmp_path / "model" / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    arguments = (tmp_path / "model", "--vocab-only", "--outfile", tmp_path / "made.gguf")
    with run(environment, environment.model_script, *arguments) as process:
        assert process.stdout is not None
        last = process.stdout.read().splitlines()[-1]
    assert "error" in json.loads(last)
    assert not (tmp_path / "ran").exists()


ATTEMPTS = """
import json, os, pickle, socket, subprocess, sys, torch, numpy
def attempt(work):
    try:
        work()
    except (PermissionError, MemoryError, RuntimeError) as error:
        return type(error).__name__
    return "done"
print(json.dumps({
    "connect": attempt(lambda: socket.create_connection(("127.0.0.1", 9))),
    "resolve": attempt(lambda: socket.getaddrinfo("localhost", 9)),
    "run": attempt(lambda: subprocess.run(["true"])),
    "system": attempt(lambda: os.system("true")),
    "unpickle": attempt(lambda: pickle.loads(pickle.dumps(os.getcwd))),
    "load": attempt(lambda: torch.load("x")),
    "memory": attempt(lambda: numpy.ones(2**29)),
}))
"""


def test_the_converter_has_limits_and_forbidden_operations(
    environment: Environment, tmp_path: Path
) -> None:
    (tmp_path / "attempts.py").write_text(ATTEMPTS)
    with run(environment, tmp_path / "attempts.py") as process:
        assert process.stdout is not None
        found = json.loads(process.stdout.read().splitlines()[-1])
    assert found.pop("memory") == "MemoryError"
    assert set(found.values()) == {"PermissionError"}, found


def test_the_converter_ends_when_specd_ends(environment: Environment, tmp_path: Path) -> None:
    (tmp_path / "wait.py").write_text("import signal\nprint('waiting', flush=True)\nsignal.pause()")
    with run(environment, tmp_path / "wait.py") as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "waiting\n"
        process.stdin.close()
        assert process.wait(30) == 1
