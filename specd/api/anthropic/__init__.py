"""The Anthropic dialect: `/v1/messages`."""
