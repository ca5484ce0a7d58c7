"""From an accepted document to a searchable one. `pipeline` takes one version after the other through its stages,
`collection_writer` embeds chunks and writes points, `publisher` makes them durable and visible in groups (when, says
`flush_policy`), `index` knows which collection serves and builds others,
`garbage_collector` removes what was replaced or deleted, `document_changes` wakes those who wait for a document."""
