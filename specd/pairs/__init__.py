"""Which drafter serves which target, and the reason where none does."""

from __future__ import annotations

from specd.pairs.finder import Pairs
from specd.pairs.registry import Rule, Rules, load_rules

__all__ = ["Pairs", "Rule", "Rules", "load_rules"]
