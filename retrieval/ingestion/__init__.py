"""From an accepted document to a searchable one. `pipeline` takes one version after the other through its stages,
`collection_writer` embeds chunks and writes points, `index` knows which collection serves, builds others and removes
what was replaced or deleted, `policies` says when and how many at a time, `document_changes` wakes those who wait for a
document.
"""
