"""The HTTP routes of retrieval, one module per route group. `app` serves the table of `contract.retrieval`, whose
every route has a handler here."""
