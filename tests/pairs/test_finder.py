"""Check which drafter a target gets, or the reason why it gets none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from specd.core import NoPair
from specd.pairs import Pairs, Rule, Rules
from specd.store import Library
from tests.gguf_architectures import write_lfm2
from tests.gguf_embedders import write_bert
from tests.gguf_files import (
    VOCABULARY,
    OllamaStore,
    byte_vocabulary,
    write_llama,
    write_mamba,
    write_truncated,
)


@pytest.fixture
def store(tmp_path: Path) -> OllamaStore:
    store = OllamaStore(tmp_path / "models")
    store.add("big", weights=write_llama(tmp_path / "big.gguf"))
    store.add("small", weights=write_llama(tmp_path / "small.gguf", seed=1))
    return store


def rules(*drafters: str, target: str = "big*", reason: str = "") -> tuple[Rule, ...]:
    return (Rule(targets=(target,), drafters=drafters, origin="registry", reason=reason),)


def users(*drafters: str) -> tuple[Rule, ...]:
    return (Rule(targets=("big*",), drafters=drafters, origin="user"),)


def pairs(store: OllamaStore, chosen: Rules, *, enabled: bool = True) -> Pairs:
    return Pairs(Library(store.root, demo=False), chosen, enabled=enabled)


def resolve_and_pair(
    store: OllamaStore, chosen: Rules, name: str = "big", *, enabled: bool = True
) -> tuple[str, str, NoPair | None, str]:
    """Return the drafter's name and source, the reason and its detail."""
    library = Library(store.root, demo=False)
    pair = pairs(store, chosen, enabled=enabled).pair(library.resolve(name))
    assert (pair.drafter is None) == (pair.reason is not None) == bool(pair.detail)
    if pair.drafter is None:
        return "", "", pair.reason, pair.detail
    return pair.drafter.name, pair.drafter.source, pair.reason, pair.detail


def test_a_rule_finds_an_installed_drafter(store: OllamaStore) -> None:
    found = resolve_and_pair(store, Rules(packaged=rules("none:1b*", "small*")))
    assert found == ("small:latest", "registry", None, "")


def test_the_models_own_draft_goes_first(store: OllamaStore, tmp_path: Path) -> None:
    store.add("big", weights=tmp_path / "big.gguf", draft=tmp_path / "small.gguf")
    name, source, reason, _ = resolve_and_pair(store, Rules(user=users("small")))
    assert (name, source, reason) == ("big:latest (its own draft)", "manifest", None)


def test_an_unfit_draft_layer_leaves_the_rule_its_turn(store: OllamaStore, tmp_path: Path) -> None:
    shuffled = write_llama(tmp_path / "x.gguf", vocabulary=byte_vocabulary(shuffle_seed=1))
    store.add("big", weights=tmp_path / "big.gguf", draft=shuffled)
    assert resolve_and_pair(store, Rules(packaged=rules("small")))[:2] == (
        "small:latest",
        "registry",
    )
    assert resolve_and_pair(store, Rules())[2] is NoPair.VOCABULARY_DIFFERS


def test_the_users_rule_goes_before_the_packaged_one(store: OllamaStore, tmp_path: Path) -> None:
    store.add("mine", weights=write_llama(tmp_path / "mine.gguf", seed=2))
    found = resolve_and_pair(store, Rules(user=users("mine"), packaged=rules("small")))
    assert found[:2] == ("mine:latest", "user")


def test_a_rule_may_name_a_file(store: OllamaStore, tmp_path: Path) -> None:
    found = resolve_and_pair(store, Rules(user=users(str(tmp_path / "small.gguf"))))
    assert found[:2] == ("small.gguf", "user")
    missing = resolve_and_pair(store, Rules(user=users(str(tmp_path / "gone.gguf"))))
    assert missing[2] is NoPair.UNREADABLE
    assert "gone.gguf" in missing[3]


def test_of_several_drafters_the_first_that_fits_is_taken(
    store: OllamaStore, tmp_path: Path
) -> None:
    other = write_llama(tmp_path / "x.gguf", vocabulary=byte_vocabulary(shuffle_seed=1))
    store.add("stranger", weights=other)
    found = resolve_and_pair(store, Rules(packaged=rules("stranger", "small")))
    assert found[0] == "small:latest"


def test_an_unfit_drafter_is_refused_with_the_token_that_differs(
    store: OllamaStore, tmp_path: Path
) -> None:
    other = write_llama(tmp_path / "x.gguf", vocabulary=VOCABULARY.with_token(65, "@@"))
    store.add("stranger", weights=other)
    _, _, reason, detail = resolve_and_pair(store, Rules(packaged=rules("stranger")))
    assert reason is NoPair.VOCABULARY_DIFFERS
    assert detail == (
        "The drafter stranger:latest has another vocabulary than big:latest:"
        " token 65 is “A” in one and “@@” in the other."
    )


def test_no_rule_and_no_installed_drafter_have_different_messages(store: OllamaStore) -> None:
    reason, detail = resolve_and_pair(store, Rules())[2:]
    assert reason is NoPair.NOT_FOUND
    assert detail == (
        "No rule names a drafter for big:latest, and it has only 37.98K parameters: it is about as"
        " fast as a drafter would be."
    )
    assert resolve_and_pair(store, Rules(packaged=rules("tiny:1b", "tiny:2b")))[2:] == (
        NoPair.NOT_FOUND,
        "No drafter for big:latest is installed; any of these would do: tiny:1b, tiny:2b.",
    )


@pytest.mark.parametrize(
    "more,words",
    [
        ({"pull": ("tiny:1b", "tiny:2b")}, "; `specd pull tiny:1b` gets one."),
        ({"reason": "few of them fit"}, ": few of them fit."),
        ({}, "."),
    ],
)
def test_messages_on_what_to_install_contain_no_patterns(
    store: OllamaStore, more: dict[str, Any], words: str
) -> None:
    rule = Rule(targets=("big*",), drafters=("tiny:1b*", "*/*tiny*"), origin="registry", **more)
    _, _, reason, detail = resolve_and_pair(store, Rules(packaged=(rule,)))
    assert (reason, detail) == (
        NoPair.NOT_FOUND,
        f"No drafter for big:latest is installed{words}",
    )


def test_a_model_never_drafts_for_itself(store: OllamaStore) -> None:
    assert resolve_and_pair(store, Rules(packaged=rules("big")))[2] is NoPair.NOT_FOUND


def test_a_rule_without_drafters_forbids(store: OllamaStore, tmp_path: Path) -> None:
    reason, detail = resolve_and_pair(store, Rules(packaged=rules(reason="it is fast")))[2:]
    assert reason is NoPair.REFUSED_BY_RULE
    assert detail == "No model drafts for big:latest: it is fast."
    assert resolve_and_pair(store, Rules(packaged=rules(reason="It is.")))[3].endswith(": It is.")
    store.add("big", weights=tmp_path / "big.gguf", draft=tmp_path / "small.gguf")
    assert resolve_and_pair(store, Rules(user=users()))[2] is NoPair.REFUSED_BY_RULE


def test_a_damaged_drafter_is_named_and_the_target_served_plain(
    store: OllamaStore, tmp_path: Path
) -> None:
    store.add("broken", weights=write_truncated(tmp_path / "x.gguf"))
    _, _, reason, detail = resolve_and_pair(store, Rules(packaged=rules("broken")))
    assert reason is NoPair.UNREADABLE
    assert "broken:latest" in detail
    assert "truncated" in detail
    store.add("big", weights=tmp_path / "big.gguf", draft=tmp_path / "x.gguf")
    assert resolve_and_pair(store, Rules())[2] is NoPair.UNREADABLE


def test_a_model_that_cannot_rewind_drafts_but_gets_no_drafter(
    store: OllamaStore, tmp_path: Path
) -> None:
    store.add("snake", weights=write_mamba(tmp_path / "mamba.gguf"))
    anything = Rules(packaged=rules("small", target="*"))
    _, _, reason, detail = resolve_and_pair(store, anything, "snake")
    assert reason is NoPair.CANNOT_REWIND
    assert "mamba" in detail
    assert resolve_and_pair(store, Rules(packaged=rules("snake")))[0] == "snake:latest"


def test_an_embedder_has_nothing_to_draft(store: OllamaStore, tmp_path: Path) -> None:
    store.add("minilm", weights=write_bert(tmp_path / "bert.gguf"))
    anything = Rules(packaged=rules("small", target="*"))
    drafter, _, reason, detail = resolve_and_pair(store, anything, "minilm")
    assert drafter == ""
    assert reason is NoPair.EMBEDS
    assert detail == "minilm:latest gives vectors instead of text, so there is nothing to draft."


def test_a_hybrid_with_snapshots_gets_a_drafter(store: OllamaStore, tmp_path: Path) -> None:
    store.add("fluid", weights=write_lfm2(tmp_path / "lfm2.gguf"))
    found = resolve_and_pair(store, Rules(packaged=rules("small", target="*")), "fluid")
    assert found == ("small:latest", "registry", None, "")


def test_an_embedding_model_is_no_drafter(store: OllamaStore, tmp_path: Path) -> None:
    store.add("minilm", weights=write_bert(tmp_path / "bert.gguf"))
    _, _, reason, detail = resolve_and_pair(store, Rules(packaged=rules("minilm")))
    assert (reason, detail) == (
        NoPair.UNREADABLE,
        "The drafter minilm:latest gives vectors instead of text.",
    )


@pytest.mark.parametrize(
    "architecture,reason",
    [("eagle3", NoPair.UNREADABLE), ("llada", NoPair.CANNOT_REWIND)],
)
def test_heads_and_diffusion_models_are_no_drafters(
    store: OllamaStore, tmp_path: Path, architecture: str, reason: NoPair
) -> None:
    store.add("odd", weights=write_llama(tmp_path / "odd.gguf", architecture=architecture))
    found = resolve_and_pair(store, Rules(packaged=rules("odd")))
    assert found[2] is reason
    assert architecture in found[3]


def test_the_users_switch_is_the_reason_before_all_others(store: OllamaStore) -> None:
    found = resolve_and_pair(store, Rules(packaged=rules("small")), enabled=False)
    assert found[2:] == (NoPair.DISABLED_BY_USER, "Speculative decoding is switched off.")


def test_a_drafter_installed_later_is_found(store: OllamaStore, tmp_path: Path) -> None:
    library = Library(store.root, demo=False)
    finder = Pairs(library, Rules(packaged=rules("late")))
    target = library.resolve("big")
    assert finder.pair(target).reason is NoPair.NOT_FOUND
    store.add("late", weights=tmp_path / "small.gguf")
    assert finder.pair(target).drafter is not None


def test_a_drafter_of_which_only_the_file_is_gone_is_not_kept(
    store: OllamaStore, tmp_path: Path
) -> None:
    store.add("other", weights=write_llama(tmp_path / "other.gguf", seed=2))
    library = Library(store.root, demo=False)
    finder = Pairs(library, Rules(packaged=rules("small", "other")))
    target = library.resolve("big")
    first = finder.pair(target).drafter
    assert first is not None
    assert first.name == "small:latest"
    first.weights.unlink()
    second = finder.pair(target).drafter
    assert second is not None
    assert second.name == "other:latest"


def test_a_damaged_drafter_that_is_mended_in_its_place_drafts(
    store: OllamaStore, tmp_path: Path
) -> None:
    store.add("broken", weights=write_truncated(tmp_path / "x.gguf"))
    library = Library(store.root, demo=False)
    finder = Pairs(library, Rules(packaged=rules("broken")))
    target = library.resolve("big")
    stamp = library.stamp()
    assert finder.pair(target).reason is NoPair.UNREADABLE
    store.weights_path("broken").write_bytes((tmp_path / "small.gguf").read_bytes())
    assert library.stamp() == stamp
    assert finder.pair(target).drafter is not None


def test_a_file_that_a_rule_names_may_be_exchanged(store: OllamaStore, tmp_path: Path) -> None:
    library = Library(store.root, demo=False)
    finder = Pairs(library, Rules(user=users(str(tmp_path / "small.gguf"))))
    target = library.resolve("big")
    assert finder.pair(target).drafter is not None
    write_llama(tmp_path / "small.gguf", vocabulary=byte_vocabulary(shuffle_seed=1))
    assert finder.pair(target).reason is NoPair.VOCABULARY_DIFFERS


def test_a_rule_of_the_registry_does_not_silence_a_models_own_draft(
    store: OllamaStore, tmp_path: Path
) -> None:
    store.add("big", weights=tmp_path / "big.gguf", draft=tmp_path / "small.gguf")
    forbidden = Rules(packaged=rules(reason="it is fast"))
    assert resolve_and_pair(store, forbidden)[1] == "manifest"


def test_of_several_unfit_drafters_the_first_ones_reason_is_reported(
    store: OllamaStore, tmp_path: Path
) -> None:
    other = write_llama(tmp_path / "x.gguf", vocabulary=byte_vocabulary(shuffle_seed=1))
    store.add("stranger", weights=other)
    store.add("broken", weights=write_truncated(tmp_path / "y.gguf"))
    found = resolve_and_pair(store, Rules(packaged=rules("broken", "stranger")))
    assert found[2] is NoPair.UNREADABLE
    found = resolve_and_pair(store, Rules(packaged=rules("stranger", "broken")))
    assert found[2] is NoPair.VOCABULARY_DIFFERS
