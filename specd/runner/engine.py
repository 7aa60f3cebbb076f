"""The interface of an engine, and the choice of the engine for a load."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from specd import core, errors
from specd.options import Options


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A chat for an engine that takes messages.

    model: the model's name on the engine's server.  think, n_logprobs, grammar: as in
    `core.GenerateRequest`.
    """

    model: str
    messages: tuple[core.Message, ...]
    options: Options
    tools: tuple[Mapping[str, object], ...] = ()
    think: bool | str | None = None
    n_logprobs: int | None = None
    grammar: core.Grammar | None = None


class Completions(Protocol):
    """Answers rendered prompts."""

    def generate(self, request: core.EngineRequest, /) -> core.Stream[core.Event]:
        """Yield Started and Tokens, then one Done or Failed; closing it early frees the slot."""


class Chats(Protocol):
    """Answers messages: it renders the prompt and parses the answer itself."""

    def chat(self, request: ChatRequest, /) -> core.Stream[core.Delta | core.Done | core.Failed]:
        """Yield Deltas, then one Done or Failed; closing it early cancels the request."""


class Tokenizer(Protocol):
    """Turns text into tokens and back."""

    async def tokenize(self, *pieces: str | core.Image, add_bos: bool) -> list[int]:
        """Return the tokens of a prompt, negative for images; raise EngineCrashed if it died."""

    async def detokenize(self, tokens: Sequence[int], /) -> str:
        """Return the text of tokens; raise EngineCrashed, or InvalidRequest for an unknown id."""


class Embedder(Protocol):
    """Turns texts into vectors."""

    async def embed(self, text: str, *, truncate: bool, n_ctx: int | None = None) -> core.Embedding:
        """Return the vector of `text`; raise SpecdError if it fails.

        n_ctx: most tokens of the text; None is the engine's whole context.
        """


class Engine(Protocol):
    """One engine, in a process of this machine or on another server, from its load to its end.

    The four capabilities are None for an engine that lacks them, and valid once it is ready.  An
    engine that answers has `completions` or `chats`.
    """

    async def ready(self) -> core.EngineFacts:
        """Wait for the load and return its facts; raise SpecdError if it failed."""

    def stop(self) -> None:
        """Ask the engine to end, in any state and any number of times.

        Then a pending `ready` raises ShuttingDown, pending answers end with a Failed of the kind
        SHUTDOWN, and `ended` returns.
        """

    async def ended(self) -> object:
        """Return once the engine has ended, or was given up: see `is_stuck`."""

    @property
    def is_stuck(self) -> bool:
        """Whether the engine was given up and still exists: not even SIGKILL ended it."""

    @property
    def pid(self) -> int | None:
        """The id of its running process on this machine, if it has one."""

    @property
    def completions(self) -> Completions | None: ...
    @property
    def chats(self) -> Chats | None: ...
    @property
    def tokenizer(self) -> Tokenizer | None: ...
    @property
    def embedder(self) -> Embedder | None: ...


class Upstream(Protocol):
    """A server with models of its own, such as an OpenAI-compatible one."""

    @property
    def name(self) -> str:
        """Its name among the engines, as in `core.UpstreamModel.engine`."""

    def models(self) -> Iterable[core.UpstreamModel]:
        """Return the models that it offers at this moment; never blocks, never fails.

        Called from any thread.
        """

    def start(self, spec: core.UpstreamSpec, /) -> Engine:
        """Begin to use one of its models; return at once."""


@dataclass(frozen=True, slots=True)
class Engines:
    """Starts the engine that a load asks for.

    start_local: starts an engine for a model of the store.
    """

    start_local: Callable[[core.EngineSpec], Engine]
    upstreams: Sequence[Upstream] = ()

    def __post_init__(self) -> None:
        names = [upstream.name for upstream in self.upstreams]
        if twice := {name for name in names if names.count(name) > 1}:
            raise errors.BadSetting(f"two engines have the name {min(twice)}")

    def start(self, spec: core.LoadSpec) -> Engine:
        """Begin to load a model and return at once."""
        if isinstance(spec, core.UpstreamSpec):
            [upstream] = (one for one in self.upstreams if one.name == spec.engine)
            return upstream.start(spec)
        assert isinstance(spec, core.EngineSpec), "a load is local or upstream"
        return self.start_local(spec)

    def models(self) -> list[core.UpstreamModel]:
        """Return the models of all upstream servers."""
        return [model for upstream in self.upstreams for model in upstream.models()]
