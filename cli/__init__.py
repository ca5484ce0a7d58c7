"""The command line: one module per kind of command of `roundhouse COMMAND`, which imports heavy libraries only when it
runs. `admin_client` connects to the controller, or to a gateway in its place; `output` prints for people or as JSON.
"""
