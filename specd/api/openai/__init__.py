"""The OpenAI dialect: `/v1/*`."""
