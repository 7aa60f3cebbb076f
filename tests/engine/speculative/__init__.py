"""Tests of drafting and of the controller."""
