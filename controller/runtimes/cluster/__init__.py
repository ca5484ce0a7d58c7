"""Several hosts as one runtime. `runtime` asks them over a carrier, `host_service` answers on each with the runtime
there, and `carrier` declares what carries requests and answers between the two.
"""
