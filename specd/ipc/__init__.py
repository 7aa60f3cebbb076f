"""The only words that daemon and engine share, and how they travel."""
