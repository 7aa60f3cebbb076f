"""Simulate the draft controller: recorded drafts, stated costs, the engine's own loop."""
