"""Judges the controller without a clock: recorded guesses, stated costs, the engine's own loop."""
