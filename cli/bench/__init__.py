"""`roundhouse bench`: a load test of one model through a gateway. `load` sends the requests, `report` judges and draws
them.
"""
