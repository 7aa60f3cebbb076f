"""Constrained decoding: which tokens a grammar allows next, and sampling among them.

llguidance does the parsing.  Grammars of clients are first compiled in a process of their own.
"""
