"""The HTTP routes of retrieval, one module per route group. `app` serves the table of `retrieval.schema.routes`, whose
every route has a handler here."""
