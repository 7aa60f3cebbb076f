"""`/v1/responses`, without a memory: each request holds the whole conversation."""
