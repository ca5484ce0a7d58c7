"""Several hosts as one runtime. `runtime` asks the hosts over a carrier, `host_service` answers on each of them with the
runtime there, and `carrier` declares what carries requests and answers between the two.
"""
