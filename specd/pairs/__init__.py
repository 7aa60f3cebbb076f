"""Pairs targets with drafters, gives the reason if there is none, and keeps the measurements."""

from __future__ import annotations

from specd.pairs.drafter_fetcher import DrafterFetcher
from specd.pairs.finder import LOCAL_STORE, Pairs
from specd.pairs.history import HISTORY_FILE, History, HistoryEntry, HistoryKey
from specd.pairs.history_writer import HistoryWriter
from specd.pairs.rule_files import RuleFiles, load_rules
from specd.pairs.rules import Rule, RuleBook, Rules
from specd.pairs.vocabularies import Vocabularies
from specd.store.file_identity import file_identities, file_identity

__all__ = [
    "HISTORY_FILE",
    "LOCAL_STORE",
    "DrafterFetcher",
    "History",
    "HistoryEntry",
    "HistoryKey",
    "HistoryWriter",
    "Pairs",
    "Rule",
    "RuleBook",
    "RuleFiles",
    "Rules",
    "Vocabularies",
    "file_identities",
    "file_identity",
    "load_rules",
]
