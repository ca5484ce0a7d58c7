"""API families: how each writes requests, answers, streams and errors, and how one is translated to another.
`api_matrix` says which engine API serves which path. Pure.
"""
