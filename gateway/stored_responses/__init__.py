"""The state of the responses API: what is stored, what runs, and the exchange that makes it."""
