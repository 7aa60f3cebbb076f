"""`/v1/responses`, without stored conversations: each request sends the whole conversation."""
