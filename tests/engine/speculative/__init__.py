"""Drafting and deciding."""
