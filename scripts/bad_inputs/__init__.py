"""Inputs that no honest client sends and no honest model holds, and what a daemon makes of them."""
