"""Check automatic pulls of drafters: which, when, how often, and their status texts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd import core
from specd.core import NoPair
from specd.errors import RegistryError, RegistryUnreachable, SpecdError, StoreError
from specd.pairs import DrafterFetcher, Pairs, Rule, Rules
from specd.pairs.drafter_fetcher import _next_tenth
from specd.store import Library
from tests.gguf_files import VOCABULARY, OllamaStore, Vocabulary, byte_vocabulary, write_llama
from tests.registry.conftest import Client
from tests.registry.fake_registry import FakeRegistry, stall, status

HOUR = 3600.0


def ref(name: str) -> core.ModelRef:
    return core.LocalModel(name=name, full_name=f"r/{name}", digest="0" * 64, weights=Path(name))


def lacking(*pull: str, target: str = "big:70b") -> core.Pair:
    return core.Pair(target=ref(target), reason=NoPair.NOT_FOUND, detail="None.", pull=pull)


@dataclass
class Shop:
    """Fake pulls, which a test ends with an error or None.  here: the complete models."""

    asked: list[str] = field(default_factory=list)
    ends: dict[str, asyncio.Future[SpecdError | None]] = field(default_factory=dict)
    here: set[str] = field(default_factory=set)
    closed: list[str] = field(default_factory=list)
    misfits: set[str] = field(default_factory=set)
    now: float = 0.0
    lines: Sequence[core.Progress] = ()
    paired: asyncio.Event = field(default_factory=asyncio.Event)

    async def pull(self, model: str, /) -> AsyncGenerator[core.Progress, None]:
        self.asked.append(model)
        end = self.ends[model] = asyncio.get_running_loop().create_future()
        try:
            yield core.Progress(status="pulling manifest")
            for line in self.lines:
                yield line
            if (error := await end) is not None:
                raise error
            self.here.add(model)
        finally:
            self.closed.append(model)

    def pair(self, target: core.ModelRef) -> core.Pair:
        for name in self.here - self.misfits:
            found = core.Drafter(name=name, weights=Path(name), source="registry")
            return core.Pair(target=target, drafter=found)
        return core.Pair(target=target, reason=NoPair.VOCABULARY_DIFFERS, detail="It differs.")

    @asynccontextmanager
    async def drafter_fetcher(self) -> AsyncIterator[DrafterFetcher]:
        drafter_fetcher = DrafterFetcher(self.pull, self.pair, clock=lambda: self.now)
        try:
            yield drafter_fetcher
        finally:
            await drafter_fetcher.close()

    async def end(
        self, drafter_fetcher: DrafterFetcher, model: str, error: SpecdError | None = None
    ) -> None:
        """End a running pull, and wait until its results are processed."""
        self.ends[model].set_result(error)
        await idle(drafter_fetcher, model)


async def idle(drafter_fetcher: DrafterFetcher, model: str) -> None:
    """Wait until the fetcher has no work for `model`; a pull of another model may run."""
    async with asyncio.timeout(30):
        while drafter_fetcher.fetches[model].doing:  # noqa: ASYNC110 - a thread pairs in between
            await asyncio.sleep(0)


async def begun(shop: Shop, *models: str) -> None:
    async with asyncio.timeout(30):
        while shop.ends.keys() != set(models):  # noqa: ASYNC110 - no time passes
            await asyncio.sleep(0)


async def test_the_first_that_could_be_pulled_is_pulled_once_and_then_drafts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "specd")
    shop, pair = Shop(), lacking("small:1b", "small:3b")
    async with shop.drafter_fetcher() as drafter_fetcher:
        assert drafter_fetcher.status_text(pair) == ""
        drafter_fetcher.request_drafter(pair)
        assert drafter_fetcher.status_text(pair) == "small:1b is waiting to be pulled."
        await begun(shop, "small:1b")
        assert drafter_fetcher.status_text(pair) == "small:1b is being pulled."
        drafter_fetcher.request_drafter(pair)
        await shop.end(drafter_fetcher, "small:1b")
        assert (
            drafter_fetcher.status_text(pair)
            == "small:1b is installed; it drafts from the next load."
        )
        drafter_fetcher.request_drafter(pair)
    assert shop.asked == ["small:1b"]
    assert caplog.messages[-1] == "small:1b is installed; it drafts for big:70b from its next load"
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


@pytest.mark.parametrize("reason", [reason for reason in NoPair if reason != NoPair.NOT_FOUND])
async def test_nothing_is_pulled_for_another_reason_or_with_a_drafter(
    reason: NoPair,
) -> None:
    shop, pair = Shop(), lacking("small:1b")
    there = core.Drafter(name="x", weights=Path("x"), source="user")
    async with shop.drafter_fetcher() as drafter_fetcher:
        drafter_fetcher.request_drafter(replace(pair, reason=reason))
        drafter_fetcher.request_drafter(replace(pair, reason=None, drafter=there))
        drafter_fetcher.request_drafter(lacking())
        assert drafter_fetcher.status_text(replace(pair, reason=reason)) == ""
        assert "auto-pull" not in {task.get_name() for task in asyncio.all_tasks()}
    assert shop.asked == []


@pytest.mark.parametrize("misfits", [set(), {"published:1b"}])
async def test_a_rules_drafter_is_pulled_although_another_is_installed(misfits: set[str]) -> None:
    shop = Shop(misfits=misfits)
    on_the_shelf = core.Drafter(name="stopgap:2b", weights=Path("s"), source="shelf")
    served = core.Pair(target=ref("big:70b"), drafter=on_the_shelf, pull=("published:1b",))

    def pair(target: core.ModelRef) -> core.Pair:
        found = shop.pair(target)
        return found if found.drafter is not None else served

    drafter_fetcher = DrafterFetcher(shop.pull, pair)
    drafter_fetcher.request_drafter(served)
    await begun(shop, "published:1b")
    await shop.end(drafter_fetcher, "published:1b")
    assert drafter_fetcher.status_text(served) == (
        "published:1b is installed but not used: stopgap:2b is."
        if misfits
        else "published:1b is installed; it drafts from the next load."
    )
    await drafter_fetcher.close()


async def test_nothing_is_pulled_if_pulls_are_disabled() -> None:
    shop = Shop()
    drafter_fetcher = DrafterFetcher(shop.pull, shop.pair, enabled=False)
    drafter_fetcher.request_drafter(lacking("small:1b"))
    await drafter_fetcher.close()
    assert (shop.asked, drafter_fetcher.status_text(lacking("small:1b"))) == ([], "")


async def test_one_model_is_pulled_at_a_time_and_serves_all_requests() -> None:
    shop = Shop()
    async with shop.drafter_fetcher() as drafter_fetcher:
        drafter_fetcher.request_drafter(lacking("a"))
        drafter_fetcher.request_drafter(lacking("b", target="other:1"))
        drafter_fetcher.request_drafter(lacking("A", target="third:1"))
        await begun(shop, "a")
        assert drafter_fetcher.status_text(lacking("b")) == "b is waiting to be pulled."
        await shop.end(drafter_fetcher, "a")
        for target in ("big:70b", "third:1"):
            assert drafter_fetcher.status_text(lacking("a", target=target)).startswith(
                "a is installed; it drafts"
            )
        await begun(shop, "a", "b")
        await shop.end(drafter_fetcher, "b")
    assert shop.asked == ["a", "b"]


async def test_an_incompatible_drafter_is_reported_and_not_pulled_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shop, pair = Shop(misfits={"a"}), lacking("a")
    async with shop.drafter_fetcher() as drafter_fetcher:
        drafter_fetcher.request_drafter(pair)
        await begun(shop, "a")
        await shop.end(drafter_fetcher, "a")
        assert drafter_fetcher.status_text(pair) == "a is installed but not used: It differs."
        shop.now = 1000 * HOUR
        drafter_fetcher.request_drafter(pair)
    assert shop.asked == ["a"]
    assert caplog.messages == ["a is installed but not used for big:70b: It differs."]


@pytest.mark.parametrize("error", [StoreError("no space left on device"), RegistryError("403: no")])
async def test_a_refused_pull_logs_one_warning_and_is_not_repeated(
    error: SpecdError, caplog: pytest.LogCaptureFixture
) -> None:
    shop, pair = Shop(), lacking("a")
    async with shop.drafter_fetcher() as drafter_fetcher:
        for _ in range(2):
            drafter_fetcher.request_drafter(pair)
            shop.now += 1000 * HOUR
            if not shop.closed:
                await begun(shop, "a")
                await shop.end(drafter_fetcher, "a", error)
        assert drafter_fetcher.status_text(pair) == f"a could not be pulled: {error}"
        drafter_fetcher.request_drafter(lacking("b"))  # other drafters are pulled
        await begun(shop, "a", "b")
    assert shop.asked == ["a", "b"]
    assert caplog.messages == [f"a could not be pulled: {error}"]


async def test_an_unreachable_registry_is_tried_again_after_one_two_and_four_hours(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shop, pair = Shop(), lacking("a")
    async with shop.drafter_fetcher() as drafter_fetcher:
        for hours in (1, 2, 4):
            drafter_fetcher.request_drafter(pair)
            await begun(shop, "a")
            await shop.end(drafter_fetcher, "a", RegistryUnreachable("no route"))
            del shop.ends["a"]
            shop.now += hours * HOUR - 1
            drafter_fetcher.request_drafter(pair)
            assert drafter_fetcher.status_text(pair) == "a could not be pulled: no route"
            shop.now += 1
        assert len(shop.asked) == 3
        drafter_fetcher.request_drafter(pair)
        await begun(shop, "a")
        await shop.end(drafter_fetcher, "a")
        assert drafter_fetcher.status_text(pair).startswith("a is installed")
    said = "a could not be pulled: no route; it may be tried again in"
    assert caplog.messages == [f"{said} {hours} h" for hours in (1, 2, 4)]


@pytest.mark.parametrize(
    "error, said",
    [
        (RegistryError("403: no"), "a could not be pulled: 403: no"),
        (None, "a is installed but not used: It differs."),
    ],
)
async def test_no_pull_is_repeated_after_a_final_result(
    error: SpecdError | None, said: str
) -> None:
    shop, pair = Shop(misfits={"a"}), lacking("a")
    async with shop.drafter_fetcher() as drafter_fetcher:
        for end in (RegistryUnreachable("no route"), error):
            drafter_fetcher.request_drafter(pair)
            await begun(shop, "a")
            await shop.end(drafter_fetcher, "a", end)
            del shop.ends["a"]
            shop.now += HOUR
        shop.now += 1000 * HOUR
        drafter_fetcher.request_drafter(pair)
        assert drafter_fetcher.status_text(pair) == said
    assert shop.asked == ["a", "a"]


async def test_a_fault_of_ours_costs_one_drafter(caplog: pytest.LogCaptureFixture) -> None:
    shop = Shop()

    async def pull(model: str, /) -> AsyncGenerator[core.Progress, None]:
        if model == "a":
            raise ZeroDivisionError("a bug")
        async with aclosing(shop.pull(model)) as lines:
            async for line in lines:
                yield line

    drafter_fetcher = DrafterFetcher(pull, shop.pair)
    drafter_fetcher.request_drafter(lacking("a"))
    drafter_fetcher.request_drafter(lacking("b"))
    await begun(shop, "b")
    assert drafter_fetcher.status_text(lacking("a")) == "a could not be pulled: a bug"
    await drafter_fetcher.close()
    assert "ZeroDivisionError" in caplog.text


async def test_the_end_of_the_daemon_ends_a_pull_and_begins_no_other() -> None:
    shop = Shop()
    async with shop.drafter_fetcher() as drafter_fetcher:
        drafter_fetcher.request_drafter(lacking("a"))
        drafter_fetcher.request_drafter(lacking("b"))
        await begun(shop, "a")
    assert shop.closed == ["a"]
    drafter_fetcher.request_drafter(lacking("c"))
    assert drafter_fetcher.status_text(lacking("c")) == ""
    assert shop.asked == ["a"]


async def test_a_pull_that_fails_for_being_stopped_lets_no_other_begin() -> None:
    asked = []

    async def pull(model: str, /) -> AsyncGenerator[core.Progress, None]:
        asked.append(model)
        try:
            yield core.Progress(status="pulling manifest")
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise StoreError("cut off") from None

    drafter_fetcher = DrafterFetcher(pull, Shop().pair)
    drafter_fetcher.request_drafter(lacking("a"))
    drafter_fetcher.request_drafter(lacking("b"))
    while not asked:  # noqa: ASYNC110 - no time passes
        await asyncio.sleep(0)
    await drafter_fetcher.close()
    assert asked == ["a"]


# --------------------------------------------------------------------------- progress


async def test_progress_is_logged_at_every_tenth(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "specd")

    def line(completed: int, digest: str = "x") -> core.Progress:
        return core.Progress(
            status="pulling", digest=digest, total=1_300_000_000, completed=completed * 13_000_000
        )

    small = (line(0, "y"), line(100, "y"), line(100, "z"))
    shop = Shop(lines=[*map(line, (3, 9, 10, 15, 42, 43, 40, 99, 100)), *small])
    async with shop.drafter_fetcher() as drafter_fetcher:
        drafter_fetcher.request_drafter(lacking("a"))
        await begun(shop, "a")
        while len(caplog.messages) < 4:  # noqa: ASYNC110 - no time passes
            await asyncio.sleep(0)
    assert caplog.messages == [
        "a is being pulled, to draft for big:70b",
        "a: 10 % of 1.3 GB",
        "a: 40 % of 1.3 GB",
        "a: 90 % of 1.3 GB",
    ]


@given(st.lists(st.tuples(st.sampled_from("xy"), st.integers(0, 1000)), max_size=50))
def test_the_logged_tenths_of_a_layer_always_rise(
    reports: list[tuple[str, int]],
) -> None:
    told: dict[str, int] = {}
    said: dict[str, list[int]] = {"x": [], "y": []}
    for digest, completed in reports:
        line = core.Progress(status="", digest=digest, total=1000, completed=completed)
        if (tenth := _next_tenth(told, line)) is not None:
            said[digest].append(tenth)
            assert tenth == completed // 100
    for tenths in said.values():
        assert tenths == sorted(set(tenths))
        assert set(tenths) <= set(range(1, 10))
    assert _next_tenth(told, core.Progress(status="pulling manifest")) is None


# --------------------------------------------------------------------------- over HTTP


@dataclass
class House:
    """A store with the model big:latest, and a registry with a small model to pull."""

    client: Client
    remote: FakeRegistry
    folder: Path

    def __post_init__(self) -> None:
        self.store = OllamaStore(self.client.root)
        self.store.add("big", weights=write_llama(self.folder / "big.gguf", seed=1))
        self.library = Library(self.client.root, demo=False)

    @property
    def small(self) -> str:
        """Return the small model's name, in the registry and later in the store."""
        return self.remote.name("me/small/1b").removeprefix("http://")

    def offer(self, vocabulary: Vocabulary = VOCABULARY) -> None:
        path = write_llama(self.folder / "small.gguf", vocabulary=vocabulary)
        self.remote.add("me/small/1b", path.read_bytes(), config=b'{"model_format":"gguf"}')

    def pull(self, model: str, /) -> AsyncGenerator[core.Progress, None]:
        return self.client.registry.pull(model, insecure=True)

    def pairs(self) -> Pairs:
        rule = Rule(targets=("big*",), drafters=(self.small,), origin="registry")
        return Pairs(self.library, Rules(packaged=(rule,)))

    async def request_drafter(self, drafter_fetcher: DrafterFetcher) -> str:
        """Request the small model as a drafter; return its final status text."""
        lacking = core.Pair(
            target=self.library.resolve("big"), reason=NoPair.NOT_FOUND, pull=(self.small,)
        )
        drafter_fetcher.request_drafter(lacking)
        await idle(drafter_fetcher, self.small)
        return drafter_fetcher.status_text(lacking)


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    client = Client(tmp_path / "models", keys=None)
    async with FakeRegistry().serve() as remote:
        yield House(client, remote, tmp_path)
        await client.registry.close()


async def test_a_model_pulled_from_a_registry_drafts(house: House) -> None:
    house.offer()
    pairs = house.pairs()
    target = house.library.resolve("big")
    assert pairs.pair(target).reason is NoPair.NOT_FOUND
    drafter_fetcher = DrafterFetcher(house.pull, pairs.pair)
    said = await house.request_drafter(drafter_fetcher)
    assert said == f"{house.small} is installed; it drafts from the next load."
    drafter = pairs.pair(target).drafter
    assert drafter is not None
    assert drafter.name == house.small
    await drafter_fetcher.close()


async def test_another_vocabulary_is_found_out_once_it_is_here(house: House) -> None:
    house.offer(byte_vocabulary(shuffle_seed=1))
    drafter_fetcher = DrafterFetcher(house.pull, house.pairs().pair)
    for _ in range(2):
        said = await house.request_drafter(drafter_fetcher)
        assert "is installed but not used" in said
        assert "vocabulary" in said
    assert len([seen for seen in house.remote.seen if "/manifests/" in seen.path]) == 1
    await drafter_fetcher.close()


@pytest.mark.parametrize(
    "code, n_asked", [(404, 1), (403, 1), (503, 2)], ids=["absent", "refused", "out of order"]
)
async def test_refusals_of_a_registry_are_final_and_temporary_errors_are_not(
    house: House, code: int, n_asked: int
) -> None:
    now = 0.0
    drafter_fetcher = DrafterFetcher(house.pull, house.pairs().pair, clock=lambda: now)
    house.offer()
    house.remote.manifest_faults.extend([status(code)] * 3)
    assert "could not be pulled: pull model manifest: " in await house.request_drafter(
        drafter_fetcher
    )
    n_before = len(house.remote.seen)
    await house.request_drafter(drafter_fetcher)
    assert len(house.remote.seen) == n_before
    now += HOUR
    house.remote.manifest_faults.clear()
    said = await house.request_drafter(drafter_fetcher)
    assert ("is installed" in said) == (n_asked == 2), said
    await drafter_fetcher.close()


async def test_a_registry_that_is_not_there_is_asked_again(house: House) -> None:
    name = "127.0.0.1:1/me/small:1b"
    lacking = core.Pair(target=ref("big:70b"), reason=NoPair.NOT_FOUND, pull=(name,))
    now = 0.0
    drafter_fetcher = DrafterFetcher(house.pull, house.pairs().pair, clock=lambda: now)
    for n_failures in (1, 2):
        drafter_fetcher.request_drafter(lacking)
        await idle(drafter_fetcher, name)
        assert drafter_fetcher.fetches[name].n_failures == n_failures
        now += HOUR
    await drafter_fetcher.close()


async def test_a_stalled_pull_ends_with_the_daemon_and_keeps_its_bytes(house: House) -> None:
    house.offer()
    stalled = asyncio.Event()
    house.remote.faults.extend([stall(500, stalled)] * 99)
    drafter_fetcher = DrafterFetcher(house.pull, house.pairs().pair)
    lacking = core.Pair(target=ref("big:70b"), reason=NoPair.NOT_FOUND, pull=(house.small,))
    drafter_fetcher.request_drafter(lacking)
    await stalled.wait()
    await drafter_fetcher.close()
    assert drafter_fetcher.status_text(lacking) == ""
    partial = [path for path in house.client.files() if "-partial" in path]
    assert partial
    assert not [path for path in house.client.manifests() if "small" in path]
