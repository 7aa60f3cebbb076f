"""Test whole requests with a fake scheduler and an engine that sends a list of events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specd import core, errors
from specd.errors import GoTemplateError
from specd.generation import Generation
from specd.settings import Settings
from tests.fakes.in_process_engine import DRAFTER, FakeEngine, FakeServices

MODEL = core.LocalModel(
    name="tiny:latest",
    full_name="registry.ollama.ai/library/tiny:latest",
    digest="0" * 64,
    weights=Path("/m/tiny.gguf"),
    chat_template=(
        "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    ),
    bos_token="<s>",
    capabilities=("completion", "tools", "thinking"),
)
DONE = core.Done(
    reason=core.StopReason.STOP,
    usage=core.Usage(n_prompt=3, n_generated=2, generate_ns=1_000_000_000),
    speculation=core.SpeculationStats(draft_n=4, draft_n_accepted=3),
)
ALTERNATING = (
    "{% for m in messages if m.role != 'system' %}{% if (m.role == 'user') != (loop.index0 % 2"
    " == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}{% endfor %}"
    "{% for m in messages %}{{ m.content }} {% endfor %}"
)


class WordEngine(FakeEngine):
    """An engine that answers every request with its events; a token is a word."""

    def __init__(self, *events: core.Event) -> None:
        self.events = events
        self.asked: list[core.EngineRequest] = []
        self.n_tokenized = 0
        self.tokenized: dict[int, str] = {}  # the last text of each length
        self.dies = 0
        self.closed = False

    async def generate(self, request: core.EngineRequest) -> AsyncGenerator[core.Event, None]:
        self.asked.append(request)
        try:
            for event in self.events:
                yield event
        finally:
            self.closed = True

    async def tokenize(self, *pieces: str | core.Image, add_bos: bool) -> list[int]:
        self.n_tokenized += 1
        if self.dies:
            self.dies -= 1
            raise errors.EngineCrashed("gone")
        counts = (500 if isinstance(p, core.Image) else len(p.split()) for p in pieces)
        tokens = list(range(n := sum(counts)))
        if all(isinstance(piece, str) for piece in pieces):
            self.tokenized[n] = "".join(map(str, pieces))
        return tokens

    def text_of(self, request: core.EngineRequest) -> core.EngineRequest:
        """Return the request with its text, if its prompt is the tokens of one."""
        prompt = request.prompt
        if prompt and all(isinstance(piece, int) for piece in prompt):
            return replace(request, prompt=(self.tokenized[len(prompt)],))
        return request

    async def detokenize(self, tokens: Sequence[int]) -> str:
        return "".join(f"<{token}>" for token in tokens)


class ChatServices(FakeServices):
    """A `Generation` with one model, one pair and one engine that sends `events`."""

    engine: WordEngine

    def __init__(
        self, *events: core.Event, model: core.ModelRef = MODEL, n_ctx: int = 4096
    ) -> None:
        memory = core.ModelMemory(device="CPU", total_bytes=1, vram_bytes=0)
        facts = core.EngineFacts(
            n_ctx=n_ctx, n_ctx_train=0, n_vocab=9, target=memory, drafter=memory
        )
        engine = WordEngine(*(events or (core.Token(text="hi"), DONE)))
        super().__init__(model, engine, facts, str(DRAFTER.weights))
        self.paired: list[core.Pair] = []
        self.answered: list[tuple[core.Pair, str | None]] = []
        ticks = iter(range(1000))
        self.generation = Generation(
            self,
            self,
            self,
            Settings(),
            clock=lambda: next(ticks),
            random_seed=lambda: 77,
            on_leased=self.paired.append,
            on_answered=lambda *answered: self.answered.append(answered),
        )

    async def ask(
        self, prompt: core.ChatPrompt | core.TextPrompt, **fields: Any
    ) -> list[core.Delta | core.Done]:
        request = core.GenerateRequest(model=self.model, prompt=prompt, **fields)
        return [part async for part in self.generation.generate(request)]

    async def asked(
        self, prompt: core.ChatPrompt | core.TextPrompt, **fields: Any
    ) -> core.EngineRequest:
        await self.ask(prompt, **fields)
        return self.engine.text_of(self.engine.asked[-1])


def chat(*contents: str, roles: str = "user assistant") -> core.ChatPrompt:
    names = roles.split()
    return core.ChatPrompt(
        messages=tuple(
            core.Message(role=names[i % len(names)], content=text)
            for i, text in enumerate(contents)
        )
    )


@pytest.mark.contract("answer.load-duration")
async def test_an_answer_is_deltas_and_one_done_with_the_time_until_the_lease() -> None:
    services = ChatServices(core.Token(text="a"), core.Token(text="b"), DONE)
    *deltas, done = await services.ask(chat("hello"))
    assert deltas == [core.Delta(content="a"), core.Delta(content="b")]
    assert done == replace(DONE, load_ns=1_000_000_000)
    assert services.n_released == 1


async def test_on_answered_gets_the_loaded_drafter_for_whole_answers_only() -> None:
    services = ChatServices()
    services.drafter = "/m/other.gguf"
    await services.ask(chat("hello"))
    assert services.answered == [(services.found, "/m/other.gguf")]
    # It is not called for a request without drafts or for one that failed.
    off = core.SpeculationStats(reason=core.NoPair.DISABLED_BY_USER)
    services.engine.events = (replace(DONE, speculation=off),)
    await services.ask(chat("hello"))
    services.engine.events = (
        core.Token(text="a"),
        core.Failed(kind=core.FailureKind.ENGINE, message="why"),
    )
    with pytest.raises(errors.EngineError):
        await services.ask(chat("hello"))
    assert len(services.answered) == 1


async def test_the_pair_and_the_options_decide_how_the_engine_loads() -> None:
    model = replace(MODEL, parameters={"num_ctx": 512, "num_gpu": 3})
    services = ChatServices(model=model)
    await services.ask(chat("hello"), options={"num_gpu": 5, "num_thread": 2}, keep_alive_s=9.0)
    [(spec, keep_alive_s)] = services.leased
    assert (spec.weights, spec.drafter) == ("/m/tiny.gguf", "/m/tinier.gguf")
    assert (spec.n_ctx, spec.n_gpu_layers, spec.n_threads) == (512, 5, 2)
    assert keep_alive_s == 9.0


@pytest.mark.contract("options.runner")
async def test_every_runner_option_reaches_the_engine() -> None:
    services = ChatServices()
    options = {"num_batch": 64, "num_gpu": 5, "main_gpu": 1, "num_thread": 2, "use_mmap": False}
    await services.ask(chat("hello"), options=options)
    [(spec, _)] = services.leased
    assert (spec.n_batch, spec.n_gpu_layers, spec.main_gpu) == (64, 5, 1)
    assert (spec.n_threads, spec.use_mmap) == (2, False)


@pytest.mark.contract("options.runner", "options.truncated")
@pytest.mark.parametrize(
    "asked, n_gpu_layers, main_gpu",
    [
        ({"num_gpu": 1e20}, 9999, None),
        ({"num_gpu": -1e20}, -1, None),
        ({"main_gpu": -1e20}, -1, -1),
        ({"num_gpu": 999, "main_gpu": 7}, 999, 7),
    ],
)
async def test_layers_and_gpus_are_limited_to_possible_numbers(
    asked: dict[str, Any], n_gpu_layers: int, main_gpu: int | None
) -> None:
    services = ChatServices()
    await services.ask(chat("hello"), options=asked)
    [(spec, _)] = services.leased
    assert (spec.n_gpu_layers, spec.main_gpu) == (n_gpu_layers, main_gpu)


@pytest.mark.contract("options.runner")
async def test_the_number_of_a_missing_gpu_is_refused() -> None:
    with pytest.raises(errors.InvalidOption, match='"main_gpu" must be the number of a GPU'):
        await ChatServices().ask(chat("hello"), options={"main_gpu": 1e20})


@pytest.mark.contract("options.sampling")
async def test_num_keep_reaches_the_engine() -> None:
    assert (await ChatServices().asked(chat("x"), options={"num_keep": 9})).n_keep == 9


async def test_a_random_seed_and_a_given_one() -> None:
    assert (await ChatServices().asked(chat("x"))).sampling.seed == 77
    assert (await ChatServices().asked(chat("x"), options={"seed": 0})).sampling.seed == 0


@pytest.mark.contract("generate.num-predict", "answer.repeats")
@pytest.mark.parametrize("wanted, given", [(-1, 40960), (50000, 40960), (7, 7), (0, 0)])
async def test_no_answer_is_longer_than_ten_contexts(wanted: int, given: int) -> None:
    assert (
        await ChatServices().asked(chat("x"), options={"num_predict": wanted})
    ).n_predict == given


@pytest.mark.contract("options.draft")
async def test_the_draft_length_is_the_requests_own() -> None:
    asked = await ChatServices().asked(chat("x"), options={"draft_num_predict": 0})
    assert asked.n_draft_max == 0
    assert (await ChatServices().asked(chat("x"))).n_draft_max is None


@pytest.mark.contract("shift.deepseek2")
async def test_shift_is_on_unless_disabled_or_impossible() -> None:
    assert (await ChatServices().asked(chat("x"))).shift
    assert not (await ChatServices().asked(chat("x"), shift=False)).shift
    services = ChatServices(model=replace(MODEL, architecture="deepseek2"))
    assert not (await services.asked(chat("x"))).shift


# --------------------------------------------------------------------------- prompts


async def test_a_chat_is_rendered_with_its_own_bos() -> None:
    asked = await ChatServices().asked(chat("hello"))
    assert asked.prompt == ("<s>[user]hello[assistant]",)
    assert not asked.add_bos


async def test_without_bos_in_the_template_the_vocabularys_rule_holds() -> None:
    services = ChatServices(model=replace(MODEL, chat_template="{{ messages[0].content }}"))
    asked = await services.asked(chat("hello"))
    assert (asked.prompt, asked.add_bos) == (("hello",), True)


@pytest.mark.contract("chat.modelfile")
async def test_the_modelfiles_turns_come_first_and_its_system_only_by_default() -> None:
    history = (core.Message(role="user", content="q"), core.Message(role="assistant", content="a"))
    model = replace(MODEL, system="be kind", messages=history)
    asked = await ChatServices(model=model).asked(chat("hello"))
    assert asked.prompt == ("<s>[system]be kind[user]q[assistant]a[user]hello[assistant]",)
    asked = await ChatServices(model=model).asked(chat("be short", "hello", roles="system user"))
    assert asked.prompt == ("<s>[user]q[assistant]a[system]be short[user]hello[assistant]",)


async def test_a_text_is_one_user_turn() -> None:
    model = replace(MODEL, system="be kind")
    asked = await ChatServices(model=model).asked(core.TextPrompt(text="hello"))
    assert asked.prompt == ("<s>[system]be kind[user]hello[assistant]",)
    asked = await ChatServices(model=model).asked(core.TextPrompt(text="hello", system="be short"))
    assert asked.prompt == ("<s>[system]be short[user]hello[assistant]",)


@pytest.mark.contract("generate.no-template", "generate.raw")
async def test_raw_text_and_text_for_a_model_without_a_template_stay_bare() -> None:
    assert (await ChatServices().asked(core.TextPrompt(text="x", raw=True))).prompt == ("x",)
    services = ChatServices(model=replace(MODEL, chat_template=None))
    asked = await services.asked(core.TextPrompt(text="x"))
    assert (asked.prompt, asked.add_bos) == (("x",), True)


@pytest.mark.contract("generate.context", "generate.system")
async def test_an_earlier_context_comes_before_the_text_and_replaces_the_modelfiles_turns() -> None:
    model = replace(MODEL, messages=(core.Message(role="user", content="q"),))
    asked = await ChatServices(model=model).asked(core.TextPrompt(text="x", context=(1, 5)))
    assert asked.prompt == (1, 5, "[user]x[assistant]")
    assert not asked.add_bos


async def test_a_go_template_renders_chats_and_its_errors_are_the_answer() -> None:
    by_go = replace(MODEL, go_template="{{ .System }}>{{ .Prompt }}<{{ .Response }}|")
    by_go = replace(by_go, system="S", templating=core.Templating.GO)
    assert (await ChatServices(model=by_go).asked(chat("x", "y", "z"))).prompt == ("S>x<y|>z<",)
    damaged = replace(by_go, go_template="{{ .System")
    with pytest.raises(GoTemplateError, match=r"^template: :1: unclosed action$"):
        await ChatServices(model=damaged).ask(chat("x"))


async def test_render_shows_the_prompt() -> None:
    request = core.GenerateRequest(model=MODEL, prompt=chat("hello"))
    assert await ChatServices().generation.render(request) == "<s>[user]hello[assistant]"


# --------------------------------------------------------------------------- too long


SPACED = replace(MODEL, chat_template="{% for m in messages %}{{ m.content }} {% endfor %}")


@pytest.mark.contract("truncate.chat")
async def test_a_long_chat_loses_the_fewest_oldest_turns() -> None:
    services = ChatServices(model=replace(SPACED, system="system"), n_ctx=4)
    asked = await services.asked(chat("one", "two", "three", "four", "five"))
    assert asked.prompt == ("system three four five ",)


@pytest.mark.contract("truncate.chat")
async def test_the_last_turn_and_the_system_stay_even_if_they_do_not_fit() -> None:
    services = ChatServices(model=replace(SPACED, system="system"), n_ctx=1)
    assert (await services.asked(chat("one", "two", "three"))).prompt == ("system three ",)


async def test_a_template_that_wants_a_user_first_loses_one_turn_more() -> None:
    services = ChatServices(model=replace(MODEL, chat_template=ALTERNATING), n_ctx=4)
    asked = await services.asked(chat("one", "two", "three", "four", "five"))
    assert asked.prompt == ("three four five ",)


@pytest.mark.contract("truncate.chat")
async def test_an_agents_chat_keeps_the_users_last_request() -> None:
    services = ChatServices(model=SPACED, n_ctx=4)
    turns = [core.Message(role="user", content="old"), core.Message(role="user", content="asked")]
    for i in range(40):
        turns.append(core.Message(role="assistant", content=f"call{i}"))
        turns.append(core.Message(role="tool", content=f"result{i}"))
    asked = await services.asked(core.ChatPrompt(messages=tuple(turns)))
    assert asked.prompt == ("asked result38 call39 result39 ",)


async def test_a_template_that_refuses_every_shortened_chat_is_tried_a_few_times_only() -> None:
    refusing = "{{ raise_exception('no') }}"
    services = ChatServices(model=replace(MODEL, chat_template=refusing), n_ctx=4)
    with pytest.raises(errors.InvalidRequest, match="no"):
        await services.asked(chat(*map(str, range(2001))))


@pytest.mark.contract("truncate.off")
async def test_nothing_is_cut_if_the_request_forbids_it() -> None:
    services = ChatServices(model=SPACED, n_ctx=2)
    asked = await services.asked(chat("one", "two", "three"), truncate=False)
    assert (asked.prompt, asked.truncate) == (("one two three ",), False)


async def test_a_counted_prompt_is_submitted_as_its_tokens() -> None:
    services = ChatServices(model=SPACED, n_ctx=4)
    await services.ask(chat("one", "two", "three"))
    [request] = services.engine.asked
    assert (request.prompt, request.add_bos) == ((0, 1, 2), False)


async def test_an_engine_without_a_last_event_is_an_error() -> None:
    with pytest.raises(errors.EngineError, match="unexpectedly stopped"):
        await ChatServices(core.Token(text="a")).ask(chat("x"))


async def test_the_last_event_comes_after_the_lease() -> None:
    services = ChatServices()
    request = core.GenerateRequest(model=MODEL, prompt=chat("x"))
    async for event in services.generation.generate(request):
        assert services.n_released == isinstance(event, core.Done)


async def test_a_chat_shorter_than_the_context_in_bytes_is_not_counted() -> None:
    services = ChatServices()
    await services.ask(chat("one", "two", "three"))
    assert services.engine.n_tokenized == 0


# --------------------------------------------------------------------------- shorter contexts


@pytest.mark.parametrize(
    "asked, granted", [(0, 4096), (512, 512), (9000, 4096), (4096, 4096), (2, 4), (-7, 4)]
)
async def test_a_request_gets_its_context_but_no_more_than_is_loaded(
    asked: int, granted: int
) -> None:
    request = await ChatServices(n_ctx=4096).asked(chat("x"), options={"num_ctx": asked})
    assert request.n_ctx == granted
    assert request.n_predict == 10 * granted


async def test_the_modelfiles_context_counts_if_the_request_has_none() -> None:
    services = ChatServices(model=replace(MODEL, parameters={"num_ctx": 512}))
    assert (await services.asked(chat("x"))).n_ctx == 512
    assert (await services.asked(chat("x"), options={"num_ctx": 1024})).n_ctx == 1024


async def test_a_vision_model_always_has_context_for_an_image() -> None:
    services = ChatServices(model=replace(MODEL, projector=Path("/m/mmproj.gguf")))
    assert (await services.asked(chat("x"), options={"num_ctx": 512})).n_ctx == 2048


@pytest.mark.contract("truncate.chat")
async def test_a_chat_is_cut_to_the_requested_context() -> None:
    words = chat("one", "two", "three", "four", "five")
    cut, whole = (ChatServices(model=SPACED, n_ctx=6) for _ in range(2))
    assert (await cut.asked(words, options={"num_ctx": 4})).prompt == ("two three four five ",)
    assert (await whole.asked(words)).prompt == ("one two three four five ",)


# --------------------------------------------------------------------------- thinking


def thought(parts: list[core.Delta | core.Done]) -> tuple[str, str]:
    deltas = [part for part in parts if isinstance(part, core.Delta)]
    return "".join(d.thinking for d in deltas), "".join(d.content for d in deltas)


@pytest.mark.contract("think.apart")
async def test_thinking_is_separated_from_the_answer() -> None:
    tokens = [core.Token(text=text) for text in ("<thi", "nk>hm", "m</think>", "yes")]
    assert thought(await ChatServices(*tokens, DONE).ask(chat("x"))) == ("hmm", "yes")


async def test_unrequested_thinking_is_separated_and_other_text_is_unchanged() -> None:
    tokens: list[core.Event] = [core.Token(text="<think>a</think>b"), DONE]
    assert thought(await ChatServices(*tokens).ask(chat("x"), think=False)) == ("a", "b")
    assert thought(await ChatServices(*tokens).ask(core.TextPrompt(text="x", raw=True)))[0] == ""
    services = ChatServices(*tokens, model=replace(MODEL, capabilities=("completion",)))
    assert thought(await services.ask(chat("x")))[0] == ""


async def test_text_that_the_parser_held_back_is_returned_at_the_end() -> None:
    assert thought(await ChatServices(core.Token(text="<thi"), DONE).ask(chat("x"))) == ("", "<thi")


async def test_logprobs_go_with_their_token() -> None:
    logprobs = (core.TokenLogprob(token="a", bytes=(97,), logprob=-1.0),)
    parts = await ChatServices(core.Token(text="a", logprobs=logprobs), DONE).ask(chat("x"))
    assert parts[0] == core.Delta(content="a", logprobs=logprobs)


# --------------------------------------------------------------------------- failures


@pytest.mark.parametrize(
    "kind, error",
    [
        (core.FailureKind.INVALID, errors.InvalidRequest),
        (core.FailureKind.CONTEXT_LENGTH, errors.ContextLengthExceeded),
        (core.FailureKind.ENGINE, errors.EngineError),
        (core.FailureKind.CRASHED, errors.EngineCrashed),
        (core.FailureKind.SHUTDOWN, errors.ShuttingDown),
    ],
)
async def test_each_failure_is_an_error_by_name(
    kind: core.FailureKind, error: type[errors.SpecdError]
) -> None:
    services = ChatServices(core.Failed(kind=kind, message="why", n_prompt=9, n_ctx=8))
    with pytest.raises(error) as raised:
        await services.ask(chat("x"))
    assert type(raised.value) is error
    # After a crash before the first token, the request is repeated once.
    assert services.n_reloads == (kind is core.FailureKind.CRASHED)


async def test_a_request_is_not_repeated_after_a_crash_during_its_answer() -> None:
    services = ChatServices(
        core.Token(text="a"), core.Failed(kind=core.FailureKind.CRASHED, message="x")
    )
    with pytest.raises(errors.EngineCrashed):
        await services.ask(chat("x"))
    assert services.n_released == 1


async def test_an_answers_statistics_name_its_own_pair() -> None:
    """Two models with the same weights share an engine, which only has the first one's pair."""
    stats = core.SpeculationStats(drafter="another's", pair_source="registry")
    [_, done] = await ChatServices(core.Token(text="a"), replace(DONE, speculation=stats)).ask(
        chat("x")
    )
    assert isinstance(done, core.Done)
    assert done.speculation.drafter == DRAFTER.name
    assert done.speculation.pair_source == DRAFTER.source


async def stats_of(services: ChatServices, stats: core.SpeculationStats) -> core.SpeculationStats:
    services.engine.events = (replace(DONE, speculation=stats),)
    done = (await services.ask(chat("x")))[-1]
    assert isinstance(done, core.Done)
    return done.speculation


async def test_statistics_of_another_pairs_drafter_are_unchanged() -> None:
    stats = core.SpeculationStats(drafter="another's", pair_source="registry")
    services = ChatServices()
    services.drafter = "/m/another.gguf"
    assert await stats_of(services, stats) == stats
    # The drafter was deleted after the load.
    services.found = core.Pair(target=MODEL, reason=core.NoPair.NOT_FOUND, detail="None.")
    assert await stats_of(services, stats) == stats


#: Prompt lookup drafted, and was parked at the end for its own reason.
LOOKED_UP = core.SpeculationStats(
    drafter="prompt-lookup", pair_source=core.BUILTIN, reason="low_acceptance", detail="x"
)


@pytest.mark.parametrize(
    "drafter, reason, detail, said",
    [
        (None, "drafter_no_vram", "tinier needs 1.6 GB.", "tinier needs 1.6 GB."),
        ("/m/tinier.gguf", "drafter_load_failed", "not a GGUF", "not a GGUF"),
        ("/m/tinier.gguf", "architecture_cannot_rewind", "no", "no"),
        # The drafter was installed after the load.
        (None, "drafter_not_found", "None.", "tinier drafts from the next load of tiny:latest."),
    ],
)
async def test_a_missing_drafter_is_reported_with_the_reason_of_the_load(
    drafter: str | None, reason: str, detail: str, said: str
) -> None:
    services = ChatServices()
    services.drafter = drafter
    services.facts = replace(
        services.facts, drafter=None, no_pair_reason=reason, no_pair_detail=detail
    )
    stats = await stats_of(services, LOOKED_UP)
    assert (stats.drafter, stats.pair_source) == ("prompt-lookup", core.BUILTIN)
    assert (stats.reason, stats.detail) == (reason, said)
    # A request without drafts keeps that reason.
    unwanted = replace(LOOKED_UP, reason=core.NoPair.DISABLED_BY_USER)
    assert await stats_of(services, unwanted) == unwanted


async def test_lookup_that_was_parked_by_measurement_keeps_its_own_reason() -> None:
    parked = replace(LOOKED_UP, state=core.SpeculationState.PARKED)
    services = ChatServices()
    services.drafter = "/m/tinier.gguf"
    services.facts = replace(services.facts, drafter=None, no_pair_reason="drafter_load_failed")
    assert (await stats_of(services, parked)).reason == "low_acceptance"
    services.found = core.Pair(target=MODEL, reason=core.NoPair.NOT_FOUND, detail="None.")
    said = await stats_of(services, parked)
    assert (said.reason, said.detail) == ("low_acceptance", "None.")


async def test_on_leased_gets_the_pair_once_its_model_is_loaded() -> None:
    services = ChatServices()
    services.found = core.Pair(
        target=MODEL, reason=core.NoPair.NOT_FOUND, detail="None.", pull=("a",)
    )
    services.facts = replace(services.facts, drafter=None)
    assert await services.generation.pair(MODEL) == services.found
    assert services.paired == []
    done = (await services.ask(chat("x")))[-1]
    assert isinstance(done, core.Done)
    assert (done.speculation.reason, done.speculation.detail) == ("drafter_not_found", "None.")
    assert services.paired == [services.found]


async def test_a_cancelled_request_frees_slot_and_lease_at_once() -> None:
    services = ChatServices(core.Token(text="a"), core.Token(text="b"), DONE)
    request = core.GenerateRequest(model=MODEL, prompt=chat("x"))
    async with aclosing(services.generation.generate(request)) as parts:
        await anext(parts)
    assert services.engine.closed
    assert services.n_released == 1


async def test_load_and_unload_by_name() -> None:
    services = ChatServices()
    await services.generation.load(
        core.LoadRequest(model=MODEL, options={"num_ctx": 8}, keep_alive_s=5.0)
    )
    assert [(spec.n_ctx, keep) for spec, keep in services.leased] == [(8, 5.0)]
    assert services.n_released == 1
    await services.generation.unload(MODEL)
    assert services.unloaded == [MODEL]


async def test_unusable_options_are_named() -> None:
    with pytest.raises(errors.InvalidOption, match="num_batch"):
        await ChatServices().ask(chat("x"), options={"num_batch": 0})


async def test_the_trace_folder_reaches_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECD_TRACE_DIR", "/var/traces")
    services = ChatServices()
    await services.generation.load(core.LoadRequest(model=MODEL))
    [(spec, _)] = services.leased
    assert spec.trace_dir == "/var/traces"


# --------------------------------------------------------------------------- counting


async def test_a_prompts_tokens_are_counted_whole_with_its_images() -> None:
    services = ChatServices(n_ctx=4)
    turn = core.Message(role="user", content=" a b c d e f ", images=(b"1", b"2"))
    request = core.GenerateRequest(model=MODEL, prompt=core.ChatPrompt(messages=(turn,)))
    # "<s>[user]" precedes the images; the words and "[assistant]" follow them.
    assert await services.generation.count_tokens(request) == 1 + 2 * 500 + 7
    assert services.engine.asked == []
    assert services.n_released == 1


async def test_images_are_in_their_turns() -> None:
    services = ChatServices()
    turns = (
        core.Message(role="user", content="what is", images=(b"1", b"2")),
        core.Message(role="assistant", content="a cat"),
        core.Message(role="user", content="and", images=(b"3",)),
    )
    asked = await services.asked(core.ChatPrompt(messages=turns))
    assert [piece.data for piece in asked.prompt if isinstance(piece, core.Image)] == [
        b"1",
        b"2",
        b"3",
    ]
    first = asked.prompt.index(core.Image(b"3"))
    assert asked.prompt[first - 1] == "what is[assistant]a cat[user]"


async def test_a_template_may_show_an_image_twice_or_not_at_all() -> None:
    template = "{{ messages[0].content }}{{ messages[0].content }}{{ messages[2].content }}"
    services = ChatServices(model=replace(MODEL, chat_template=template))
    turns = tuple(core.Message(role="user", images=(b"%d" % i,)) for i in range(3))
    asked = await services.asked(core.ChatPrompt(messages=turns))
    shown = [piece.data for piece in asked.prompt if isinstance(piece, core.Image)]
    assert shown == [b"0", b"0", b"2"]


async def test_a_rendered_prompt_names_its_images() -> None:
    turn = core.Message(role="user", content="what is", images=(b"1", b"2"))
    request = core.GenerateRequest(model=MODEL, prompt=core.ChatPrompt(messages=(turn,)))
    assert "[img-0][img-1]what is" in await ChatServices().generation.render(request)


@pytest.mark.contract("render-only")
async def test_a_rendered_prompt_begins_with_the_text_of_its_context() -> None:
    prompt = core.TextPrompt(text="hello", context=(7, 8))
    request = core.GenerateRequest(model=MODEL, prompt=prompt)
    assert await ChatServices().generation.render(request) == "<7><8>[user]hello[assistant]"


async def test_a_chat_is_cut_by_the_tokens_of_its_images() -> None:
    """An image has 500 tokens in this engine, so two do not fit."""
    services = ChatServices(n_ctx=800)
    turns = [core.Message(role="user", content=f"{i}", images=(b"%d" % i,)) for i in range(3)]
    asked = await services.asked(core.ChatPrompt(messages=tuple(turns)))
    assert [piece.data for piece in asked.prompt if isinstance(piece, core.Image)] == [b"2"]


@pytest.mark.parametrize("n_ctx, loaded", [(512, 2048), (0, 0), (8192, 8192)])
async def test_a_model_with_a_projector_has_room_for_an_image(n_ctx: int, loaded: int) -> None:
    services = ChatServices(model=replace(MODEL, projector=Path("/m/mmproj.gguf")))
    await services.ask(chat("a"), options={"num_ctx": n_ctx})
    assert services.leased[0][0].n_ctx == loaded


async def test_counting_is_repeated_once_after_a_crash() -> None:
    services = ChatServices()
    request = core.GenerateRequest(model=MODEL, prompt=chat("a b"))
    services.engine.dies = 1
    assert await services.generation.count_tokens(request) == 2
    services.engine.dies = 2
    with pytest.raises(errors.EngineCrashed):
        await services.generation.count_tokens(request)
    assert (services.n_reloads, services.n_released) == (2, 2)
