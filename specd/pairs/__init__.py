"""Which drafter serves which target, the reason where none does, and what came of it here."""

from __future__ import annotations

from specd.pairs.fetching import Fetching
from specd.pairs.finder import SHELF, Pairs
from specd.pairs.history import HISTORY_FILE, Entry, History, Key
from specd.pairs.notebook import Notebooks
from specd.pairs.registry import RuleFiles, load_rules
from specd.pairs.rules import Rule, RuleBook, Rules
from specd.pairs.vocabularies import Vocabularies
from specd.store.identity import identities_of, identity_of

__all__ = [
    "HISTORY_FILE",
    "SHELF",
    "Entry",
    "Fetching",
    "History",
    "Key",
    "Notebooks",
    "Pairs",
    "Rule",
    "RuleBook",
    "RuleFiles",
    "Rules",
    "Vocabularies",
    "identities_of",
    "identity_of",
    "load_rules",
]
