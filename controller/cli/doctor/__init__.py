"""`roundhouse doctor`: finds what keeps this host from serving models. `fact_reader` reads the facts, `host_checks` and
`install_checks` judge them.
"""
