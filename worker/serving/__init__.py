"""The worker's HTTP surface. `app` declares the routes, `runner` runs jobs in engine threads, `response_stream` writes
answers, `server` listens, loads, serves and stops.
"""
