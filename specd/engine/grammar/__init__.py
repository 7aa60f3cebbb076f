"""Answers that must keep to a grammar: which tokens may come next, and the token that then comes.

llguidance does the parsing; whatever a client wrote is compiled here first in a process of its own.
"""
