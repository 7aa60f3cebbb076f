"""Words too small for a class."""

TokenId = int
