"""Streams that outlive their client: kept in memory and in a file, and read again from any byte."""
