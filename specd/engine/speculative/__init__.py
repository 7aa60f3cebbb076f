"""Drafting, verifying, and deciding how much of it pays."""
