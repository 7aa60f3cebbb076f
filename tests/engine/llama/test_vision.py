"""Images through real llama.cpp, compared with mtmd's own evaluation of the same prompt."""

from __future__ import annotations

import ctypes
import functools
import io
import re
import wave
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from llama_cpp import mtmd_cpp

from specd.core import Failed, FailureKind, Image, SpeculationMode
from specd.engine import images
from specd.engine.llama import library
from specd.engine.llama.model import LlamaModel
from specd.engine.llama.native import context_params, make_context
from specd.engine.sampler import Row
from specd.errors import LoadFailed
from specd.ipc.messages import Finished, Tokens
from tests.engine.llama.conftest import Engine, Recorder, assert_same_text, load, request
from tests.gguf_architectures import SMALL, write_gemma3, write_qwen2vl, write_qwen35
from tests.gguf_files import write_llama
from tests.gguf_projectors import (
    picture,
    sound,
    write_gemma3_projector,
    write_llava,
    write_qwen2vl_projector,
    write_ultravox,
)

GREEDY = {"temperature": 0.0, "n_predict": 24}
#: Kernels for passes of other widths may round differently.
CLOSE = 2e-2
WRITERS: dict[str, tuple[Callable[[Path], Path], Callable[[Path], Path]]] = {
    "llava": (write_llama, write_llava),
    "tiles": (write_llama, lambda path: write_llava(path, tiles=(32, 32, 16, 32))),
    "gemma3": (write_llama, write_gemma3_projector),
    "qwen2vl": (write_qwen2vl, write_qwen2vl_projector),
    "ultravox": (write_llama, write_ultravox),
    "gemma3 window": (
        functools.partial(write_gemma3, quantized=True),
        functools.partial(write_gemma3_projector, width=SMALL.n_embd),
    ),
    "qwen35": (
        functools.partial(write_qwen35, quantized=True),
        functools.partial(write_qwen2vl_projector, width=SMALL.n_embd),
    ),
}
#: Kinds of files without loss.
FORMATS = ("PNG", "BMP", "WEBP")
KINDS = ("llava", "tiles", "gemma3", "qwen2vl")
#: Rows depend little on the other rows of their pass; the self-check finds whether they do.
INVARIANT: dict[str, Any] = {"kv_cache_type": "f32", "flash_attention": False, "n_batch": 64}
ONE, TWO = Image(picture(1)), Image(picture(2, (40, 24)))


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Path]]:
    folder = tmp_path_factory.mktemp("images")

    @functools.cache
    def written(kind: str) -> tuple[Path, Path]:
        text, projector = WRITERS[kind]
        return text(folder / f"{kind}.gguf"), projector(folder / f"{kind}-mmproj.gguf")

    return written


@pytest.fixture(scope="session")
def seeing(files: Callable[[str], tuple[Path, Path]]) -> Callable[..., Engine]:
    @functools.cache
    def loaded(kind: str, **fields: object) -> Engine:
        text, projector = files(kind)
        drafter = text if fields.pop("drafts", False) else None
        return load(text, drafter, projector=str(projector), **fields)

    return loaded


def last_row(engine: Engine, *pieces: str | Image) -> Row:
    """Return the logits after the prompt."""
    recorder: Any = Recorder(engine.loaded.target)
    engine.loop.target = engine.loop.prefill.target = recorder
    n_prompt = engine.answer(pieces, temperature=0.0, n_predict=1)[1].usage.n_prompt
    engine.loop.target = engine.loop.prefill.target = engine.loaded.target
    row: Row = recorder.rows[0, n_prompt - 1]
    return row


def row_of_mtmd(text: Path, projector: Path, *pieces: str | Image) -> Row:
    """Return the logits after the prompt by mtmd's own helper, in a separate context."""
    native_log = library.start()
    model = LlamaModel(str(text), native_log)
    params = context_params(n_threads=1, flash_attention=None, kv_cache_type="f16")
    params.n_ctx = params.n_batch = params.n_ubatch = 512
    context = make_context(model, params)
    mtmd_params = mtmd_cpp.mtmd_context_params_default()
    mtmd_params.n_threads = 1
    if "qwen" in text.name:
        mtmd_params.image_min_tokens = 128
    mtmd = mtmd_cpp.mtmd_init_from_file(str(projector).encode(), model.handle, mtmd_params)
    parts, kept = _parts(pieces)
    chunks = mtmd_cpp.mtmd_input_chunks_init()
    assert mtmd_cpp.mtmd_tokenize_from_parts(mtmd, chunks, parts, len(pieces), True) == 0
    n_past = llama_cpp.llama_pos(0)
    code = mtmd_cpp.mtmd_helper_eval_chunks(
        mtmd, context, chunks, 0, 0, 512, True, ctypes.byref(n_past)
    )
    assert code == 0
    logits = llama_cpp.llama_get_logits_ith(context, -1)
    row: Row = np.ctypeslib.as_array(logits, shape=(model.vocabulary.n_vocab,)).copy()
    mtmd_cpp.mtmd_input_chunks_free(chunks)
    for bitmap in kept:
        mtmd_cpp.mtmd_bitmap_free(bitmap)
    mtmd_cpp.mtmd_free(mtmd)
    llama_cpp.llama_free(context)
    model.close()
    return row


def _parts(pieces: Sequence[str | Image]) -> tuple[object, list[int]]:
    parts, bitmaps = (ctypes.POINTER(mtmd_cpp.mtmd_input_part) * len(pieces))(), []
    for at, piece in enumerate(pieces):
        if isinstance(piece, str):
            words = piece.encode()
            text = mtmd_cpp.mtmd_input_text(words, len(words), False, True)
            part = mtmd_cpp.mtmd_input_part(ctypes.pointer(text), None)
        elif piece.data[:4] == b"RIFF" and piece.data[8:12] == b"WAVE":
            with wave.open(io.BytesIO(piece.data)) as prefill:
                samples = np.frombuffer(prefill.readframes(prefill.getnframes()), "<i2")
            heard = (samples / 32768).astype(np.float32)
            values = heard.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
            bitmaps.append(mtmd_cpp.mtmd_bitmap_init_from_audio(len(heard), values))
            part = mtmd_cpp.mtmd_input_part(None, bitmaps[-1])
        else:
            pixels = images.read(piece.data)
            data = (ctypes.c_uint8 * len(pixels.data)).from_buffer_copy(pixels.data)
            bitmaps.append(mtmd_cpp.mtmd_bitmap_init(pixels.width, pixels.height, data))
            part = mtmd_cpp.mtmd_input_part(None, bitmaps[-1])
        parts[at] = ctypes.pointer(part)
    return parts, bitmaps


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_with_images_gives_the_logits_of_mtmd(
    seeing: Callable[..., Engine], files: Callable[[str], tuple[Path, Path]], kind: str
) -> None:
    prompts = [
        ("see ", ONE, " there"),
        (ONE, "and", TWO, TWO, "the end"),
        (TWO, "a", ONE, "b"),
    ]
    for pieces in prompts:
        expected = row_of_mtmd(*files(kind), *pieces)
        np.testing.assert_allclose(last_row(seeing(kind), *pieces), expected, atol=CLOSE)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_depend_on_the_image_and_its_place(seeing: Callable[..., Engine], kind: str) -> None:
    prompts: list[tuple[str | Image, ...]] = [
        ("see ", ONE),
        ("see ", TWO),
        (ONE, "see "),
        (ONE, TWO, "see"),
        (TWO, ONE, "see"),
    ]
    rows = [last_row(seeing(kind), *pieces) for pieces in prompts]
    for at, row in enumerate(rows):
        for other in rows[:at]:
            assert np.abs(row - other).max() > 10 * CLOSE


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_batch", [33, 64])
def test_an_image_larger_than_a_pass_takes_several(
    seeing: Callable[..., Engine], kind: str, n_batch: int
) -> None:
    pieces = ("the thing", ONE, "and ", TWO)
    whole = last_row(seeing(kind), *pieces)
    np.testing.assert_allclose(last_row(seeing(kind, n_batch=n_batch), *pieces), whole, atol=CLOSE)


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_turn_reuses_only_the_same_image(seeing: Callable[..., Engine], kind: str) -> None:
    engine = seeing(kind)
    seen, first = engine.answer(("see ", ONE, " there"), **GREEDY)
    again, second = engine.answer(("see ", ONE, " there"), **GREEDY)
    assert (again, second.usage.n_cached) == (seen, first.usage.n_prompt - 1)
    turn = ("see ", ONE, " there", seen, " and then")
    _, third = engine.answer(turn, **GREEDY)
    assert third.usage.n_cached >= first.usage.n_prompt - 1
    other, fourth = engine.answer(("see ", TWO, " there"), **GREEDY)
    assert fourth.usage.n_cached <= fourth.usage.n_prompt - 16
    assert other != seen


def test_a_prompt_ending_in_an_image_rereads_the_image(
    seeing: Callable[..., Engine],
) -> None:
    engine = seeing("llava")
    first, _ = engine.answer(("see ", ONE), **GREEDY)
    again, done = engine.answer(("see ", ONE), **GREEDY)
    assert (again, done.usage.n_cached) == (first, 5)


@pytest.mark.parametrize("kind", KINDS)
def test_parallel_slots_answer_as_each_alone(seeing: Callable[..., Engine], kind: str) -> None:
    alone, together = seeing(kind, **INVARIANT), seeing(kind, n_slots=3, **INVARIANT)
    prompts = [("see ", ONE, " there"), ("the thing in another",), (TWO, "in")]
    together.said.clear()
    for slot, pieces in enumerate(prompts):
        together.loop.submit(slot, request(pieces, **GREEDY))
    while together.loop.is_busy:
        together.loop.step()
    for slot, pieces in enumerate(prompts):
        said = [m for m in together.said if isinstance(m, Tokens) and m.request_id == slot]
        assert "".join(m.token.text for m in said) == alone.answer(pieces, **GREEDY)[0]


@pytest.mark.parametrize("kind", [*KINDS, "gemma3 window", "qwen35"])
def test_the_text_is_the_same_with_and_without_speculation(
    seeing: Callable[..., Engine], kind: str
) -> None:
    engine = seeing(kind, drafts=True, **INVARIANT)
    n_drafted = n_accepted = 0
    for seed in range(6):
        pieces = ("the ", ONE, f" thing {seed} in", TWO, " another thing in")
        settings = {"seed": seed, "temperature": 0.4, "repeat_penalty": 1.0 + seed % 2 / 10}
        fixed = {"n_draft_max": 4, "mode": SpeculationMode.FIXED}
        done = assert_same_text(engine, pieces, fixed, n_predict=40, **settings)
        assert_same_text(engine, pieces, {}, n_predict=40, **settings)
        plain, _ = engine.answer(pieces, n_draft_max=0, n_predict=40, **settings)
        end = assert_same_text(engine, (*pieces, plain, "and"), fixed, n_predict=40)
        n_drafted += done.speculation.draft_n + end.speculation.draft_n
        n_accepted += done.speculation.draft_n_accepted + end.speculation.draft_n_accepted
    assert n_drafted > 50
    assert n_accepted > 0


@pytest.mark.parametrize("kind", ["gemma3 window", "qwen35"])
def test_other_caches_keep_images_whole(seeing: Callable[..., Engine], kind: str) -> None:
    engine = seeing(kind, **INVARIANT)
    fresh, _ = engine.answer(("see ", ONE, " there"), **GREEDY)
    engine.answer(("see ", ONE, " there", fresh, TWO, "and"), **GREEDY)
    assert engine.answer(("see ", ONE, " there"), **GREEDY)[0] == fresh
    engine.answer(("see ", TWO, " there"), **GREEDY)
    assert engine.answer(("see ", ONE, " there"), **GREEDY)[0] == fresh


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_steps", [1, 2, 3, 5])
def test_cancelling_inside_an_image_leaves_a_valid_cache(
    seeing: Callable[..., Engine], kind: str, n_steps: int
) -> None:
    engine = seeing(kind, **INVARIANT)
    pieces = ("see ", ONE, " there")
    expected, _ = engine.answer(pieces, **GREEDY)
    engine.answer(("another",), n_predict=1)
    engine.loop.submit(7, request(pieces, **GREEDY))
    for _ in range(n_steps):
        engine.loop.step()
    engine.loop.cancel(7)
    assert engine.answer(pieces, **GREEDY)[0] == expected


def test_an_image_too_large_for_its_context_is_scaled(seeing: Callable[..., Engine]) -> None:
    """The model has one token for each square of an image; n_ctx is 512."""
    huge = Image(picture(5, (640, 480)))
    done = seeing("qwen2vl").answer(("see ", huge, " there"), **GREEDY)[1]
    assert 128 <= done.usage.n_prompt <= 512 // 2 + 80


@pytest.mark.contract("images.served")
def test_all_image_formats_give_the_same_answer(seeing: Callable[..., Engine]) -> None:
    engine = seeing("llava")
    rows = [last_row(engine, "see ", Image(picture(1, kind=kind)), "a") for kind in FORMATS]
    for row in rows[1:]:
        assert np.array_equal(row, rows[0])


@pytest.mark.parametrize(
    "data, reason",
    [
        (b"", "PNG"),
        (b"hello", "PNG"),
        (picture()[:100], "cannot be read"),
        (b"RIFF    WAVEfmt ", "does not support audio"),
        (b"ID3" + bytes(100), "does not support audio"),
        (b"%PDF-1.7", "PNG"),
    ],
)
def test_an_invalid_image_fails_one_request(
    seeing: Callable[..., Engine], data: bytes, reason: str
) -> None:
    engine = seeing("llava")
    assert reason in refused(engine, data)
    assert engine.answer(("see ", ONE), **GREEDY)[0]


def refused(engine: Engine, data: bytes) -> str:
    """Return the reason of the refusal."""
    engine.said.clear()
    engine.loop.submit(9, request(("see ", Image(data))))
    while engine.loop.is_busy:
        engine.loop.step()
    end = engine.said[-1]
    assert isinstance(end, Finished)
    assert isinstance(end.event, Failed)
    assert end.event.kind is FailureKind.INVALID
    return end.event.message


def cut(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[:-5000])
    return path


@pytest.mark.parametrize(
    "write, reason",
    [
        (lambda p: p, "No such file"),
        (write_llama, "projector"),
        (lambda p: cut(write_llava(p)), "."),
        (lambda p: write_llava(p, width=48), "mismatch"),
        (lambda p: write_llava(p, projector_type="telepathy"), "telepathy"),
    ],
    ids=["absent", "a model", "truncated", "width", "type"],
)
def test_a_damaged_projector_is_refused_with_name_and_reason(
    tmp_path: Path, write: Callable[[Path], Path], reason: str
) -> None:
    path = write(tmp_path / "bad.gguf")
    with pytest.raises(LoadFailed, match=reason) as caught:
        load(write_llama(tmp_path / "t.gguf"), projector=str(path))
    assert path.name in str(caught.value)


def test_memory_of_a_projector_is_counted(files: Callable[[str], tuple[Path, Path]]) -> None:
    text, projector = files("llava")
    facts = load(text, projector=str(projector)).loaded.facts
    more = facts.target.total_bytes - load(text).loaded.facts.target.total_bytes
    assert more >= projector.stat().st_size


@pytest.mark.contract("audio.served")
def test_a_sound_gives_the_logits_of_mtmd(
    seeing: Callable[..., Engine], files: Callable[[str], tuple[Path, Path]]
) -> None:
    pieces = ("hear ", Image(sound(1)), " and ", Image(sound(2, seconds=40.0)), "the")
    expected = row_of_mtmd(*files("ultravox"), *pieces)
    np.testing.assert_allclose(last_row(seeing("ultravox"), *pieces), expected, atol=CLOSE)
    other = ("hear ", Image(sound(1)), " and ", Image(sound(3, seconds=40.0)), "the")
    assert np.abs(last_row(seeing("ultravox"), *other) - expected).max() > 10 * CLOSE


@pytest.mark.parametrize(
    "data, reason",
    [
        (picture(), "does not support image"),
        (b"ID3" + bytes(100), "a sound cannot be read"),
        (sound(seconds=0.05), "too short"),
        (sound()[:46], "too short"),
        (b"RIFF    WAVEfmt " + bytes(range(200)), "a sound cannot be read"),
    ],
    ids=["image", "no mp3", "short", "a sample", "no wav"],
)
def test_an_invalid_sound_fails_one_request(
    seeing: Callable[..., Engine], data: bytes, reason: str
) -> None:
    assert re.search(reason, refused(seeing("ultravox"), data))
