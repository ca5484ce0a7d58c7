"""Resumable streams: event streams that outlive their client, are kept in memory and in a file, and are read again from
any byte. `registry` holds the streams of all tenants and their rules, `ring` the bytes of one stream, `stream_folder`
the files; `recovery` takes over the files of an earlier process, `replay` serves readers, `client_feed` the request's
client."""
