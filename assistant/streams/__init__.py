"""Resumable streams: event streams that outlive their client, are kept in memory and in a file, and are read again from
any byte. `stream` is one of them, `registry` holds the streams of all tenants and their rules, `stream_folder` the
files; `resumable_streams` is what a gateway uses.
"""
