"""`roundhouse bench`: a load test of one model through a gateway. `load` sends the requests, `statistics` and `report`
judge them, `page` draws the report.
"""
