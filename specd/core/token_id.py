"""The type of token ids."""

TokenId = int
