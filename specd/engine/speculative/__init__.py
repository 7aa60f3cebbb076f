"""Speculative decoding: drafting, verification, and the choice of draft length."""
