"""The catalog: which documents, versions and chunks there are, in one SQLite file, and the original files. It is the
truth that vector stores copy. `database` runs statements in one thread; `versions` holds documents and their versions,
`chunks` their text, `collections` what is indexed where, `originals` the files."""
