"""The assistant: what a client needs beside a proxy, in the gateway's process.

Responses and conversations are kept, streams can be read again, tools are called, documents ground answers. `extension`
registers its hooks and routes with the gateway, which never imports it, and which works without it.
"""
