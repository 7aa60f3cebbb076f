"""Check which installed models become drafters, in which order, and without known losers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from specd import core
from specd.core import BandHistory, DrafterKind, NoPair, PairHistory
from specd.pairs import History, HistoryKey, Pairs, Rule, Rules, Vocabularies, file_identity
from specd.pairs.history import PairKey
from specd.pairs.vocabularies import VOCABULARIES_FILE
from specd.store import Library, demo
from tests.fast import computes_long
from tests.gguf_files import VOCABULARY, Vocabulary, byte_vocabulary, write_llama
from tests.pairs.sparse_stores import SparseStore, write_sparse

STRANGER = VOCABULARY.with_token(100, "surprise")
LOST = BandHistory(
    drafter=DrafterKind.MODEL, band=2, gain=0.8, n_requests=40, n_drafted=410, n_accepted=49
)
WON = BandHistory(
    drafter=DrafterKind.MODEL, band=0, gain=1.6, n_requests=40, n_drafted=900, n_accepted=700
)


class DrafterDiscovery:
    """A store of big models, and the history of its pairs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = SparseStore(folder / "models")
        self.history = History(folder / "state" / "history.json")
        self.library = Library(self.store.root, demo=False)
        self.rules = Rules()
        self.on_gpu = True
        self.finder_of_rules: tuple[Rules, Pairs] | None = None

    def add(
        self,
        name: str,
        n_billions: float,
        *,
        vocabulary: Vocabulary = VOCABULARY,
        draft: str = "",
        **more: object,
    ) -> str:
        path = write_sparse(
            self.folder / f"{name.replace(':', '-')}.gguf",
            n_billions * 1e9,
            vocabulary=vocabulary,
            **more,  # type: ignore[arg-type]
        )
        drafter = self.library.resolve(draft).weights if draft else None
        self.store.put(name, path, draft=drafter)
        return name

    def learned(self, target: str, drafter: str, *bands: BandHistory) -> None:
        weights = [str(self.library.resolve(name).weights) for name in (target, drafter)]
        spec = core.EngineSpec(weights=weights[0], drafter=weights[1])
        self.history.put(HistoryKey.of(spec, "here"), PairHistory(bands=bands))

    def answer(self, name: str) -> None:
        """Count an answer without the drafters that lost."""
        target = self.library.resolve(name).weights
        for lost in self.pair(name).skipped_drafters:
            key = PairKey(file_identity(target), file_identity(lost.weights), "here")
            self.history.count_answer(key, lost.n_retries)

    def pair(self, name: str = "big") -> core.Pair:
        if self.finder_of_rules is None or self.finder_of_rules[0] is not self.rules:
            finder = Pairs(
                self.library,
                self.rules,
                history=self.history,
                machine="here",
                on_gpu=lambda: self.on_gpu,
            )
            self.finder_of_rules = self.rules, finder
        pair = self.finder_of_rules[1].pair(self.library.resolve(name))
        assert (pair.drafter is None) == (pair.reason is not None) == bool(pair.detail)
        return pair

    def drafter(self, name: str = "big") -> str:
        """Return the drafter's name and source, or the reason why there is none."""
        pair = self.pair(name)
        if pair.drafter is None:
            return str(pair.reason)
        return f"{pair.drafter.name.removesuffix(':latest')} by {pair.drafter.source}"


@pytest.fixture
def shelf(tmp_path: Path) -> DrafterDiscovery:
    shelf = DrafterDiscovery(tmp_path)
    shelf.add("big", 8)
    return shelf


def rule(*drafters: str, origin: str = "registry", **more: object) -> Rule:
    return Rule(targets=("big",), drafters=drafters, origin=origin, **more)  # type: ignore[arg-type]


# ----------------------------------------------------------------------------- the choice


def test_the_smallest_model_with_the_same_vocabulary_drafts(shelf: DrafterDiscovery) -> None:
    shelf.add("one", 1)
    shelf.add("half", 0.5)
    shelf.add("quarter", 0.25, vocabulary=STRANGER)
    shelf.add("padded", 0.7, vocabulary=VOCABULARY.with_padding(128))
    pair = shelf.pair()
    assert pair.drafter is not None
    assert (pair.drafter.name, pair.drafter.source) == ("half:latest", "shelf")
    assert pair.drafter.weights == shelf.library.resolve("half").weights
    assert (pair.rule, pair.expected, pair.pull, pair.drafter.max_draft) == ("", {}, (), None)


@pytest.mark.parametrize("n_billions,found", [(2, True), (2.001, False), (7, False)])
def test_a_drafter_reads_a_quarter_of_its_targets_bytes_at_most(
    shelf: DrafterDiscovery, n_billions: float, *, found: bool
) -> None:
    shelf.add("small", n_billions)
    assert shelf.drafter() == ("small by shelf" if found else "drafter_not_found")


@pytest.mark.parametrize("n_billions,found", [(3, True), (2.999, False)])
def test_on_a_gpu_a_target_has_three_billion_parameters_at_least(
    shelf: DrafterDiscovery, n_billions: float, *, found: bool
) -> None:
    shelf.add("middling", n_billions)
    shelf.add("small", 0.5)
    assert shelf.drafter("middling") == ("small by shelf" if found else "drafter_not_found")


@pytest.mark.parametrize("n_billions,found", [(0.001, True), (0.14, True), (0.16, False)])
def test_on_a_cpu_a_small_target_has_a_drafter_that_is_smaller_by_far(
    shelf: DrafterDiscovery, n_billions: float, *, found: bool
) -> None:
    shelf.on_gpu = False
    shelf.add("middling", 0.6)
    shelf.add("small", n_billions)
    assert shelf.drafter("middling") == ("small by shelf" if found else "drafter_not_found")


def test_on_a_cpu_a_tiny_target_and_a_mixture_are_served_plain(shelf: DrafterDiscovery) -> None:
    shelf.on_gpu = False
    shelf.add("tiny", 0.02)
    shelf.add("tiniest", 0.001)
    assert shelf.pair("tiny").detail == (
        "No rule names a drafter for tiny:latest, and it has only 20.00M parameters: it is about"
        " as fast as a drafter would be."
    )
    shelf.add("sparse", 1, n_expert_parameters=29e9, experts=(128, 8))
    assert "mixture of experts" in shelf.pair("sparse").detail


def test_only_the_experts_that_a_token_uses_count(shelf: DrafterDiscovery) -> None:
    shelf.add("sparse", 1, n_expert_parameters=29e9, experts=(128, 8))  # 2.8 billion of 30
    shelf.add("small", 0.5)
    assert shelf.pair("sparse").detail == (
        "No rule names a drafter for sparse:latest, and it is a mixture of experts that uses only"
        " 2.8B parameters for a token: it is about as fast as a drafter would be."
    )
    shelf.add("denser", 2, n_expert_parameters=29e9, experts=(128, 8))
    assert shelf.drafter("denser") == "small by shelf"
    shelf.add("wide", 0.1, n_expert_parameters=6.4e9, experts=(64, 2))  # 0.3 billion of 6.5
    assert shelf.drafter() == "wide by shelf"


@pytest.mark.parametrize(
    "more",
    [
        {"architecture": "eagle3"},
        {"architecture": "dream"},
        {"architecture": "bert"},
        {"architecture": "clip"},
        {"extra": {"llama.pooling_type": 3}},
        {"vocabulary": byte_vocabulary(pre="qwen2")},
    ],
)
def test_unsuitable_models_are_skipped(shelf: DrafterDiscovery, more: dict[str, object]) -> None:
    shelf.add("odd", 0.1, **more)  # type: ignore[arg-type]
    assert shelf.drafter() == "drafter_not_found"
    shelf.add("small", 0.5)
    assert shelf.drafter() == "small by shelf"


def test_a_copy_of_the_target_is_the_target(shelf: DrafterDiscovery) -> None:
    blob = shelf.library.resolve("big").weights
    shelf.store.put("copy", blob)
    shelf.store.put("again", blob)
    assert shelf.pair().detail == (
        "No rule names a drafter for big:latest, and no model here is small enough and has its"
        " vocabulary."
    )


def test_a_drafter_with_two_names_is_reported_by_the_first(shelf: DrafterDiscovery) -> None:
    shelf.add("small", 0.5)
    shelf.store.put("a-copy", shelf.library.resolve("small").weights)
    assert shelf.drafter() == "a-copy by shelf"


def test_damaged_and_remote_models_are_skipped(shelf: DrafterDiscovery) -> None:
    shelf.add("small", 0.5)
    broken = shelf.library.resolve(shelf.add("broken", 0.1)).weights
    broken.write_bytes(b"GGUF")
    shelf.library.resolve(shelf.add("gone", 0.2)).weights.unlink()
    shelf.store.add("cloud", weights=None, config={"remote_host": "https://ollama.com"})
    adapted = write_llama(shelf.folder / "adapted.gguf")
    shelf.store.add("named", weights=adapted, config={"remote_host": "https://ollama.com"})
    shelf.store.add("adapted", weights=adapted, adapter=adapted)
    assert shelf.drafter() == "small by shelf"


# ---------------------------------------------------------------------- rules and manifests


@pytest.mark.parametrize(
    "rules,drafter",
    [
        (Rules(packaged=(rule("two"),)), "two by registry"),
        (Rules(packaged=(rule("none:1b"),)), "small by shelf"),
        (Rules(packaged=(rule("stranger"),)), "small by shelf"),
        (Rules(packaged=(rule(),)), "refused_by_rule"),
        (Rules(user=(rule("none:1b", origin="user"),)), "small by shelf"),
        (Rules(user=(rule("stranger", origin="user"),)), "vocabulary_differs"),
        (Rules(user=(rule(origin="user"),)), "refused_by_rule"),
    ],
    ids=["registry", "not-there", "unfit", "forbids", "users-not-there", "users-unfit", "users-no"],
)
def test_rules_precede_installed_models(
    shelf: DrafterDiscovery, rules: Rules, drafter: str
) -> None:
    shelf.add("two", 7)
    shelf.add("small", 0.5)
    shelf.add("stranger", 0.1, vocabulary=STRANGER)
    shelf.rules = rules
    assert shelf.drafter() == drafter


def test_a_pair_without_its_rules_drafter_names_the_rule_and_its_pulls(
    shelf: DrafterDiscovery,
) -> None:
    shelf.add("small", 0.5)
    by_rule = rule("one", "two", pull=("one", "two"), expected={"code": 2.1})
    shelf.rules = Rules(packaged=(by_rule,))
    pair = shelf.pair()
    assert (pair.rule, pair.pull, pair.expected) == ("registry: big", ("one", "two"), {})
    shelf.add("one", 1)
    shelf.learned("big", "one", LOST)  # the rule's first drafter was tried, so nothing is pulled
    pair = shelf.pair()
    assert pair.drafter is not None
    assert (pair.drafter.source, pair.rule, pair.pull) == ("shelf", "registry: big", ())


def test_a_manifests_own_draft_precedes_installed_models(shelf: DrafterDiscovery) -> None:
    shelf.add("small", 0.5)
    shelf.add("seven", 7)
    shelf.add("big", 9, draft="seven")
    assert shelf.drafter() == "big:latest (its own draft) by manifest"


def test_a_small_target_keeps_the_drafter_that_a_rule_or_its_manifest_gives_it(
    shelf: DrafterDiscovery,
) -> None:
    shelf.add("small", 0.5)
    shelf.add("big", 1)
    shelf.rules = Rules(packaged=(rule("small"),))
    assert shelf.drafter() == "small by registry"
    shelf.rules = Rules()
    assert shelf.drafter() == "drafter_not_found"
    shelf.add("big", 1.1, draft="small")
    assert shelf.drafter() == "big:latest (its own draft) by manifest"


def test_a_pair_has_the_fields_of_its_rule(shelf: DrafterDiscovery) -> None:
    shelf.add("small", 0.5)
    expected = {"code": 2.1}
    by_rule = rule(
        "none:1b", "small", pull=("small", "none:1b"), expected=expected, draft_length=(2, 6)
    )
    shelf.rules = Rules(packaged=(by_rule,))
    pair = shelf.pair()
    assert pair.drafter is not None
    assert (pair.rule, pair.expected, pair.drafter.max_draft) == ("registry: big", expected, 6)
    shelf.rules = Rules(packaged=(rule("none:1b", pull=("small", "none:1b"), expected=expected),))
    shelf.learned("big", "small", LOST)
    pair = shelf.pair()
    assert (pair.reason, pair.rule) == (NoPair.DOES_NOT_PAY, "registry: big")
    assert (pair.expected, pair.pull) == (expected, ("none:1b",))


# ------------------------------------------------------------------------------- history


def test_a_drafter_that_pays_is_chosen_before_a_smaller_one(shelf: DrafterDiscovery) -> None:
    for name, n_billions in (("one", 1), ("two", 2), ("half", 0.5)):
        shelf.add(name, n_billions)
    shelf.learned("big", "two", WON)
    assert shelf.drafter() == "two by shelf"
    shelf.learned("big", "one", WON)
    assert shelf.drafter() == "one by shelf"
    shelf.learned("big", "one", LOST)
    shelf.learned("big", "two", LOST)
    assert shelf.drafter() == "half by shelf"


def test_a_drafter_that_loses_is_skipped_and_reported_if_no_other_exists(
    shelf: DrafterDiscovery,
) -> None:
    shelf.add("half", 0.5)
    shelf.add("one", 1)
    shelf.learned("big", "half", LOST)
    assert shelf.drafter() == "one by shelf"
    shelf.learned("big", "one", LOST)
    pair = shelf.pair()
    assert pair.reason is NoPair.DOES_NOT_PAY
    assert pair.detail == (
        "The drafter half:latest made big:latest slower here: at best 0.80 times the plain speed"
        " over 40 answers, 12% of 410 drafted tokens accepted. It is tried again after 200 more"
        " answers, or after `specd pairs big:latest --forget`."
    )
    assert [lost.name for lost in pair.skipped_drafters] == ["half:latest", "one:latest"]
    assert pair.detail == pair.skipped_drafters[0].detail


@computes_long
def test_a_drafter_that_lost_is_tried_again_after_many_answers(
    shelf: DrafterDiscovery,
) -> None:
    shelf.add("half", 0.5)
    shelf.learned("big", "half", LOST)
    assert shelf.drafter() == "does_not_pay"
    for n_left in (200, 199):
        [lost] = shelf.pair().skipped_drafters
        assert (lost.n_answers_left, lost.n_retries) == (n_left, 0)
        assert f"after {n_left} more answers, or" in lost.detail
        shelf.answer("big")
    for _ in range(197):
        shelf.answer("big")
    assert "after 1 more answer, or" in shelf.pair().detail
    shelf.answer("big")
    assert shelf.drafter() == "half by shelf"
    assert shelf.pair().skipped_drafters == ()


def test_a_drafter_that_lost_is_not_tried_again_while_another_pays(shelf: DrafterDiscovery) -> None:
    shelf.add("half", 0.5)
    shelf.add("one", 1)
    shelf.rules = Rules(packaged=(rule("half", "one"),))
    shelf.learned("big", "half", LOST)
    assert shelf.pair().skipped_drafters[0].n_answers_left == 200
    shelf.learned("big", "one", WON)
    [lost] = shelf.pair().skipped_drafters
    assert lost.n_answers_left is None
    assert lost.detail.endswith(
        "It is tried again when one:latest no longer pays, or after"
        " `specd pairs big:latest --forget`."
    )


def test_the_next_drafter_of_a_rule_follows_one_that_loses(shelf: DrafterDiscovery) -> None:
    shelf.add("half", 0.5)
    shelf.add("one", 1)
    shelf.rules = Rules(packaged=(rule("half", "one"),))
    shelf.learned("big", "half", LOST)
    assert shelf.drafter() == "one by registry"
    shelf.learned("big", "one", LOST)
    assert shelf.drafter() == "does_not_pay"


def test_the_reason_against_a_rules_drafter_is_reported_before_other_losses(
    shelf: DrafterDiscovery,
) -> None:
    shelf.add("half", 0.5)
    shelf.add("stranger", 0.1, vocabulary=STRANGER)
    shelf.rules = Rules(packaged=(rule("stranger"),))
    shelf.learned("big", "half", LOST)
    assert shelf.drafter() == "vocabulary_differs"


def test_a_draft_of_a_manifest_that_loses_is_dropped(shelf: DrafterDiscovery) -> None:
    shelf.add("half", 0.5)
    shelf.add("big", 9, draft="half")
    shelf.learned("big", "half", LOST)
    assert shelf.drafter() == "does_not_pay"
    shelf.add("one", 1)
    assert shelf.drafter() == "one by shelf"


def test_a_drafter_named_by_the_user_is_never_dropped(shelf: DrafterDiscovery) -> None:
    shelf.add("half", 0.5)
    shelf.rules = Rules(user=(rule("half", origin="user"),))
    shelf.learned("big", "half", LOST)
    assert shelf.drafter() == "half by user"


def test_the_demo_keeps_its_drafter(tmp_path: Path) -> None:
    built_in = demo.stored_demo()
    assert built_in is not None
    history = History(None)
    target, draft = built_in.weights, built_in.last_path("draft")
    spec = core.EngineSpec(weights=str(target), drafter=str(draft))
    history.put(HistoryKey.of(spec, "here"), PairHistory(bands=(LOST,)))
    library = Library(tmp_path, demo=True)
    pair = Pairs(library, Rules(), history=history, machine="here").pair(
        library.resolve("specd-demo")
    )
    assert pair.drafter is not None
    assert pair.drafter.source == "manifest"


# ------------------------------------------------------------------- changes between requests


def names(shelf: DrafterDiscovery, steps: Sequence[str]) -> list[str]:
    """Return the drafter after each step: +name adds a model, -name removes one."""
    found = []
    for step in steps:
        name = step[1:]
        if step[0] == "+":
            shelf.add(name, {"a": 0.5, "b": 1, "c": 0.25}[name[0]])
        else:
            path = shelf.store.manifest_path(name)
            path.unlink()
            path.parent.rmdir()
        found.append(shelf.drafter())
    return found


def test_added_and_removed_models_are_noticed(shelf: DrafterDiscovery) -> None:
    assert names(shelf, ["+b", "+a", "+c", "-c", "-a", "-b", "+a"]) == [
        "b by shelf",
        "a by shelf",
        "c by shelf",
        "a by shelf",
        "b by shelf",
        "drafter_not_found",
        "a by shelf",
    ]


def test_a_drafter_without_its_file_is_never_chosen(shelf: DrafterDiscovery) -> None:
    shelf.add("one", 1)
    shelf.add("half", 0.5)
    assert shelf.drafter() == "half by shelf"
    shelf.library.resolve("half").weights.unlink()
    shelf.store.manifest_path("half").unlink()
    assert shelf.drafter() == "one by shelf"


def test_the_choice_is_cached(shelf: DrafterDiscovery, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf.add("half", 0.5)
    first = shelf.pair()
    assert shelf.finder_of_rules is not None
    monkeypatch.setattr(shelf.finder_of_rules[1], "_decide", None)
    assert shelf.pair() == first
    assert shelf.pair().target is not first.target


def test_a_pair_has_the_requested_target(shelf: DrafterDiscovery) -> None:
    shelf.add("half", 0.5)
    shelf.pair()
    shelf.add("big", 16)
    assert shelf.pair().target.key == shelf.library.resolve("big").key


def test_after_a_scan_no_header_is_read_again(
    shelf: DrafterDiscovery, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n_models_seen in (0, 2):  # the daemon may end a scan early
        over = iter([False] * n_models_seen + [True] * 9)
        finder = Pairs(shelf.library, Rules(), history=shelf.history)
        shelf.add("half", 0.5)
        finder.scan(lambda over=over: next(over))  # type: ignore[misc]
    monkeypatch.setattr("specd.pairs.vocabularies.read_header", None)
    assert finder.pair(shelf.library.resolve("big")).drafter is not None


def test_an_unreadable_store_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "manifests").write_text("no folder")
    Pairs(Library(tmp_path, demo=False), Rules()).scan(lambda: False)


def test_headers_are_read_once_per_state_folder(
    shelf: DrafterDiscovery, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf.add("half", 0.5)
    first = shelf.pair()
    assert (
        shelf.history.in_state_dir(VOCABULARIES_FILE) == shelf.folder / "state" / VOCABULARIES_FILE
    )
    monkeypatch.setattr("specd.pairs.vocabularies.read_header", None)
    monkeypatch.setattr("specd.store.library.read_header", None)
    known = Vocabularies.in_state_dir(shelf.history)
    library = Library(shelf.store.root, demo=False, read=known.read)
    again = Pairs(library, Rules(), history=shelf.history, vocabularies=known)
    assert again.pair(library.resolve("big")) == first
