"""`roundhouse up`: starts a controller and a gateway and keeps both running. `supervisor` restarts a program that ends,
`record` lists the processes in `up.json` for `roundhouse down`, `announce` prints what happens.
"""
