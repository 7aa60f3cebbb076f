"""Images in the loop, over strict fakes: kept whole, never shifted, no delay for others."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specd.core import Failed, FailureKind, Image, SpeculationMode, StopReason
from specd.engine.media import Media, MediaCache
from specd.engine.prefill import Prefill
from specd.engine.prompt_tokens import PieceTokenizer
from specd.engine.slot import Slot, SlotState
from specd.errors import InvalidRequest
from tests.engine.grammar.vocabulary import ByteVocabulary
from tests.engine.test_loop import VOCABULARY, Engine, answer
from tests.fakes.backend import FakeBackend
from tests.fakes.projector import FakeProjector

CAT, DOG, BAD = Image(b"5 cat"), Image(b"3 40 dog"), Image(b"bad")
pieces = st.lists(st.sampled_from(["HELLO", "AB", "C", CAT, DOG]), min_size=1, max_size=6)


def engine(n_slots: int = 1, n_ctx: int = 400, **fields: object) -> Engine:
    return Engine(projector=FakeProjector(), n_slots=n_slots, n_ctx=n_ctx, **fields)  # type: ignore[arg-type]


@settings(max_examples=60, deadline=None)
@given(
    turns=st.lists(pieces, min_size=1, max_size=3),
    n_batch=st.sampled_from([18, 32, 100]),
    n_draft=st.integers(1, 8),
    mode=st.sampled_from(SpeculationMode),
    repeat_penalty=st.sampled_from([1.0, 1.2]),
    rewind_limit=st.sampled_from([None, 4, 0]),
)
def test_text_with_images_depends_on_neither_cache_nor_speculation(
    turns: list[list[str | Image]],
    n_batch: int,
    n_draft: int,
    mode: SpeculationMode,
    repeat_penalty: float,
    rewind_limit: int | None,
) -> None:
    used = engine(n_batch=n_batch, rewind_limit=rewind_limit)
    for at, prompt in enumerate(turns):
        asked = {"prompt": prompt, "seed": at, "repeat_penalty": repeat_penalty}
        used.submit(at, n_draft_max=n_draft, mode=mode, **asked)
        used.run()
        plain, done = answer(engine(agreement=None), n_draft_max=0, **asked)
        assert used.text(at) == plain
        assert used.done(at).usage.n_prompt == done.usage.n_prompt


def test_all_tokens_of_an_image_are_counted() -> None:
    _, done = answer(engine(), prompt=["AB", CAT, "C"])
    assert done.usage.n_prompt == 1 + 2 + 7 + 1
    assert answer(engine(), prompt=["AB", DOG, "C"])[1].usage.n_prompt == 1 + 2 + 45 + 1


def test_equal_images_are_encoded_once() -> None:
    projector = FakeProjector()
    used = Engine(projector=projector, n_ctx=400)
    for at, (image, n_cached) in enumerate([(CAT, 0), (CAT, 10), (Image(b"5 cow"), 4), (CAT, 4)]):
        used.submit(at, prompt=["AB", image, "C"], n_predict=1)
        used.run()
        assert used.done(at).usage.n_cached == n_cached
    assert (projector.n_read, projector.n_encoded) == (2, 2)


def test_other_slots_continue_while_an_image_is_encoded() -> None:
    projector = FakeProjector()
    projector.gate.clear()
    crowd = Engine(projector=projector, n_slots=2, n_ctx=400)
    crowd.submit(1, prompt=["AB", CAT])
    crowd.submit(2, prompt=["HELLO"])
    while not any(getattr(m, "request_id", 0) == 2 and hasattr(m, "event") for m in crowd.said):
        crowd.loop.step()
    assert not crowd.text(1)
    projector.gate.set()
    crowd.run()
    assert crowd.text(1) == answer(engine(), prompt=["AB", CAT])[0]


def test_an_invalid_image_fails_one_request_with_its_reason() -> None:
    used = engine(n_slots=2)
    used.submit(1, prompt=["AB", BAD])
    used.submit(2, prompt=["AB", CAT])
    used.run()
    failed = used.end(1)
    assert isinstance(failed, Failed)
    assert (failed.kind, failed.message) == (
        FailureKind.INVALID,
        "an image cannot be read: it is bad",
    )
    assert used.text(2)


def test_a_failed_encoding_fails_one_request_and_is_retried() -> None:
    projector = FakeProjector()
    used = Engine(projector=projector, n_slots=2, n_ctx=400)
    for request_id in (1, 3):
        used.submit(request_id, prompt=["AB", Image(b"5 broken")])
        used.submit(request_id + 1, prompt=["AB", CAT])
        used.run()
        failed = used.end(request_id)
        assert isinstance(failed, Failed)
        assert failed.kind is FailureKind.ENGINE
        assert used.text(request_id + 1)
    projector.is_mended = True
    used.submit(5, prompt=["AB", Image(b"5 broken")])
    used.run()
    assert used.text(5)


def test_encoding_starts_when_a_slot_is_assigned() -> None:
    cache = MediaCache(FakeProjector())
    reader = Prefill(FakeBackend(1), VOCABULARY, cache, 400)
    for n_past, is_begun in [(0, True), (1, False)]:
        (media,) = FakeProjector().parts(b"5 cat")[1:2]
        assert isinstance(media, Media)
        slot = Slot(0)
        slot.media, slot.n_past = {0: media}, n_past * media.n_tokens
        reader.begin(slot)
        assert (media.encoding is not None) is is_begun


def test_nothing_is_encoded_for_cancelled_requests() -> None:
    """One thread reads and encodes all images: theirs would keep it from the others."""
    projector = FakeProjector()
    projector.gate.clear()
    crowd = Engine(projector=projector, n_slots=2, n_ctx=400)
    crowd.submit(1, prompt=["AB", CAT])
    while all(slot.state is SlotState.IDLE for slot in crowd.loop.slots):
        crowd.loop.step()
    # The cat has begun; after it, one request has a slot and one waits for its images.
    crowd.submit(2, prompt=["AB", CAT, Image(b"4 cow")])
    crowd.submit(3, prompt=[Image(b"3 owl")])
    crowd.loop.cancel(2)
    crowd.loop.cancel(3)
    projector.gate.set()
    crowd.run()
    assert crowd.text(1) == answer(engine(), prompt=["AB", CAT])[0]
    assert (projector.n_read, projector.n_encoded) == (1, 1)


def test_a_cancelled_encoding_is_restarted_for_another_slot() -> None:
    projector = FakeProjector()
    crowd = Engine(projector=projector, n_slots=2, n_ctx=400)
    crowd.submit(1, prompt=["AB", CAT, Image(b"4 cow")])
    projector.gate.clear()
    while not any(slot.media for slot in crowd.loop.slots):
        crowd.loop.step()
    crowd.loop.cancel(1)
    projector.gate.set()
    crowd.submit(2, prompt=["C"])
    crowd.run()
    assert projector.n_encoded <= 1
    crowd.submit(3, prompt=["AB", CAT, Image(b"4 cow")])
    crowd.run()
    assert crowd.text(3) == answer(engine(), prompt=["AB", CAT, Image(b"4 cow")])[0]


@pytest.mark.parametrize("n_steps", range(6))
def test_cancelling_at_any_step_frees_the_slot(n_steps: int) -> None:
    used = engine(n_batch=18)
    used.submit(1, prompt=["AB", DOG, "C"])
    for _ in range(n_steps):
        used.loop.step()
    used.loop.cancel(1)
    used.run()
    assert all(slot.state is SlotState.IDLE for slot in used.loop.slots)
    used.submit(2, prompt=["AB", DOG, "C"])
    used.run()
    assert used.text(2) == answer(engine(), prompt=["AB", DOG, "C"])[0]


def test_a_long_prompt_with_images_is_refused_with_both_lengths() -> None:
    used = engine(n_ctx=48)
    used.submit(1, prompt=["AB", DOG, "C"])
    used.run()
    failed = used.end(1)
    assert isinstance(failed, Failed)
    assert (failed.kind, failed.n_prompt, failed.n_ctx) == (FailureKind.CONTEXT_LENGTH, 49, 48)


def test_a_full_context_with_an_image_ends_the_answer() -> None:
    _, done = answer(engine(n_ctx=64), prompt=["AB", DOG, "C"], n_predict=100, seed=3)
    assert done.reason is StopReason.LENGTH
    assert done.usage.n_prompt + done.usage.n_generated <= 65


def test_the_returned_context_has_only_text_tokens() -> None:
    _, done = answer(engine(), prompt=["AB", CAT, "C"], n_predict=2, want_context=True)
    assert done.context[:6] == (0, 2, 3, 40, 41, 4)
    assert all(token >= 0 for token in done.context)


def test_without_a_projector_an_image_is_refused() -> None:
    blind = Engine()
    blind.submit(1, prompt=["AB", CAT])
    failed = blind.end(1)
    assert isinstance(failed, Failed)
    assert "no projector" in failed.message


def test_more_images_than_the_model_allows_are_refused() -> None:
    single = Engine(projector=FakeProjector(max_files=1))
    single.submit(1, prompt=[CAT, "A"])
    single.submit(2, prompt=[CAT, "A", CAT])
    single.run()
    assert single.text(1)
    failed = single.end(2)
    assert isinstance(failed, Failed)
    assert "1 image" in failed.message


def count(asked: Sequence[str | Image], cache: MediaCache | None) -> list[int] | InvalidRequest:
    """Return the tokens of pieces, as truncation of a chat asks for them."""
    found: list[list[int] | InvalidRequest] = []
    PieceTokenizer(VOCABULARY, cache).tokenize(asked, found.append, add_bos=True)
    if cache is not None:
        cache.submit(lambda: None).result()  # runs after it in the same thread
    assert len(found) == 1
    return found[0]


@pytest.mark.contract("truncate.images")
def test_counted_tokens_include_images() -> None:
    cache = MediaCache(FakeProjector())
    tokens = count(["AB", CAT, "C"], cache)
    assert isinstance(tokens, list)
    assert [token if token >= 0 else None for token in tokens] == [0, 2, 3, 40, *[None] * 5, 41, 4]
    assert count(["AB", "C"], cache) == [0, 2, 3, 4]


def test_a_failed_count_gives_its_reason() -> None:
    cache = MediaCache(FakeProjector())
    prompts: list[list[str | Image]] = [[BAD], ["AB", BAD, "C"]]
    for asked in prompts:
        refused = count(asked, cache)
        assert isinstance(refused, InvalidRequest)
        assert str(refused) == "an image cannot be read: it is bad"
    assert "no projector" in str(count(["AB", CAT, "C"], None))
    nothing: list[object] = []
    PieceTokenizer(ByteVocabulary()).tokenize([""], nothing.append, add_bos=True)
    assert nothing == [[]]
    # A file over which the projector itself stumbles: FakeProjector wants a number.
    assert "cannot be counted" in str(count([Image(b"x y")], cache))


def test_the_media_cache_drops_the_least_recently_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specd.engine.media._MAX_BYTES", 4 * 3 * 12)
    projector = FakeProjector()
    cache = MediaCache(projector)
    one, two, three = (cache.parts(f"5 {name}".encode()) for name in ("a", "b", "c"))
    assert cache.parts(b"5 c") is three
    assert cache.parts(b"5 b") is two
    assert cache.parts(b"5 a") is not one
    # A file that is used again becomes the most recent one.
    fresh = cache.parts(b"5 a")
    assert cache.parts(b"5 b") is two
    cache.parts(b"5 e")
    assert cache.parts(b"5 b") is two
    assert cache.parts(b"5 a") is not fresh
    # A single file is kept however large it is.
    huge = cache.parts(b"500 d")
    assert cache.parts(b"500 d") is huge
