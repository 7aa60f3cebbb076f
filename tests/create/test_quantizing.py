"""Creates that quantize weights, with a command in place of the engine."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType

from specd.core import Progress
from specd.create import CreateRequest, Creator
from specd.errors import EngineError, StoreError
from specd.store.name import parse
from tests.create.test_creator import NO_DIGEST, Workshop, refuse_broken, statuses
from tests.gguf_files import write_llama


@pytest.fixture
def shop(tmp_path: Path) -> Workshop:
    return Workshop(tmp_path / "models")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Write a target, and its quantized form."""
    write_llama(tmp_path / "target.gguf", file_type=LlamaFileType.ALL_F32)
    write_llama(tmp_path / "draft.gguf", seed=1)
    return tmp_path


def quantizer(tmp_path: Path, body: str) -> tuple[str, ...]:
    """Return a command in place of the engine: sys.argv[2:] are source, target and type."""
    script = tmp_path / "quantizer.py"
    script.write_text("import os, shutil, signal, sys\nsource, target = sys.argv[2:4]\n" + body)
    return sys.executable, str(script)


@pytest.mark.contract("create.progress")
async def test_quantization_reports_progress_and_makes_a_layer(
    shop: Workshop, files: Path, tmp_path: Path
) -> None:
    command = quantizer(
        tmp_path,
        f"shutil.copy({str(files / 'draft.gguf')!r}, target)\n"
        "print('loading'); print('1/4'); print('4/4')\n",
    )
    shop.creator = Creator(shop.writer, check_template=refuse_broken, command=command)
    digest = shop.upload(files / "target.gguf")
    size = (files / "target.gguf").stat().st_size
    lines = await shop.make(files={"target.gguf": digest}, quantize="q8_0")
    status = "quantizing F32 model to Q8_0"
    assert lines[:5] == [
        Progress(status="parsing GGUF"),
        Progress(status=status, digest=NO_DIGEST, total=size),
        Progress(status=status, digest=NO_DIGEST, total=size, completed=size // 4),
        Progress(status=status, digest=NO_DIGEST, total=size, completed=size),
        Progress(status="verifying conversion"),
    ]
    assert statuses(lines)[5:] == ["creating new layer", "writing manifest", "success"]
    assert shop.layer("model") == (files / "draft.gguf").read_bytes()
    assert not list(shop.writer.root.glob("blobs/*-partial"))


@pytest.mark.parametrize(
    "body, text",
    [
        ("os.kill(os.getpid(), signal.SIGABRT)", "failed: signal: SIGABRT"),
        ("print('1/2'); print('out of luck'); sys.exit(1)", "failed: out of luck"),
        ("open(target, 'wb').write(b'GGUF')", "is not a usable GGUF file"),
    ],
)
async def test_a_failed_quantization_fails_only_its_create(
    shop: Workshop,
    files: Path,
    tmp_path: Path,
    body: str,
    text: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    command = quantizer(tmp_path, body)
    shop.creator = Creator(shop.writer, check_template=refuse_broken, command=command)
    digest = shop.upload(files / "target.gguf")
    with pytest.raises((EngineError, StoreError), match=text):
        await shop.make(files={"target.gguf": digest}, quantize="Q4_K")
    assert caplog.messages == (
        [f"quantizing to Q4_K_M {text}"] if text.startswith("failed") else []
    )
    assert not shop.store.manifest_path("m").exists()
    assert not list(shop.writer.root.glob("blobs/*-partial"))


async def test_a_missing_engine_command_fails_the_create(shop: Workshop, files: Path) -> None:
    shop.creator = Creator(shop.writer, check_template=refuse_broken, command=("/nowhere",))
    digest = shop.upload(files / "target.gguf")
    with pytest.raises(EngineError, match="cannot start the engine"):
        await shop.make(files={"target.gguf": digest}, quantize="Q8_0")


async def test_closing_the_create_ends_the_quantization(
    shop: Workshop, files: Path, tmp_path: Path
) -> None:
    pid = tmp_path / "pid"
    os.mkfifo(pid)
    command = quantizer(
        tmp_path,
        f"open({str(pid)!r}, 'w').write(str(os.getpid()))\n"
        "print('1/2', flush=True)\nsignal.pause()",
    )
    shop.creator = Creator(shop.writer, check_template=refuse_broken, command=command)
    digest = shop.upload(files / "target.gguf")
    request = CreateRequest(model="m", files={"target.gguf": digest}, quantize="Q8_0")
    reading = asyncio.create_task(asyncio.to_thread(pid.read_text))
    async with aclosing(shop.creator.create(request)) as lines:
        async for line in lines:
            if line.completed:
                break
    child = int(await reading)
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
    assert not list(shop.writer.root.glob("blobs/*-partial"))


async def test_weights_of_the_requested_type_are_not_quantized(shop: Workshop, files: Path) -> None:
    digest = shop.upload(files / "target.gguf")
    await shop.make(files={"target.gguf": digest}, quantize="f32")
    assert shop.manifest()["layers"][0]["digest"] == digest


async def test_weights_already_quantized_to_the_type_are_kept(
    shop: Workshop, tmp_path: Path
) -> None:
    path = tmp_path / "q8.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_file_type(LlamaFileType.MOSTLY_Q8_0)
    blocks = np.zeros((2, 34), np.uint8)
    writer.add_tensor("x", blocks, raw_dtype=GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    digest = shop.upload(path)
    await shop.make(files={"q8.gguf": digest}, quantize="q8_0")
    assert shop.manifest()["layers"][0]["digest"] == digest


async def test_a_base_deleted_during_quantization_keeps_its_blobs(
    shop: Workshop, files: Path, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    command = quantizer(
        tmp_path,
        f"print('1/2', flush=True)\nopen({str(go)!r}).read()\n"
        f"shutil.copy({str(files / 'draft.gguf')!r}, target)\n",
    )
    shop.creator = Creator(shop.writer, check_template=refuse_broken, command=command)
    shop.store.add("base", weights=files / "target.gguf", system="Be brief.")
    async with aclosing(
        shop.creator.create(CreateRequest(model="m", base="base", quantize="Q8_0"))
    ) as lines:
        async for line in lines:
            if line.completed:
                shop.writer.delete(parse("base"))
                await asyncio.to_thread(go.write_text, "")
    assert line.status == "success"
    assert shop.layer("system") == b"Be brief."


async def test_a_stalled_quantization_is_ended(shop: Workshop, files: Path, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    command = quantizer(tmp_path, f"open({str(pid)!r}, 'w').write('x')\nsignal.pause()")
    shop.creator = Creator(shop.writer, check_template=refuse_broken, command=command, stall_s=0.05)
    digest = shop.upload(files / "target.gguf")
    with pytest.raises(EngineError, match="quantizing to Q8_0 failed: no progress for 0 s"):
        await shop.make(files={"target.gguf": digest}, quantize="Q8_0")
    assert not list(shop.writer.root.glob("blobs/*-partial"))


@pytest.fixture
def small_disk() -> Iterator[None]:
    """Limit files to 100 bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("small_disk")
async def test_the_error_of_a_full_disk_says_so(
    shop: Workshop, files: Path, tmp_path: Path
) -> None:
    command = quantizer(tmp_path, "print('basic_ios::clear: iostream error'); sys.exit(1)")
    shop.creator = Creator(shop.writer, check_template=refuse_broken, command=command)
    digest = shop.upload(files / "target.gguf")
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    why = os.strerror(errno.EFBIG).lower()
    with pytest.raises(EngineError, match=f"quantizing to Q8_0 failed: {why}"):
        await shop.make(files={"target.gguf": digest}, quantize="Q8_0")
    assert not list(shop.writer.root.glob("blobs/*-partial"))
