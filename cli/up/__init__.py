"""`roundhouse up` and `roundhouse service`: start a controller and a gateway and keep both running. `command` has the
commands, `run` says which programs and helps a new user, `supervisor` starts them again and lists them in `up.json` for
`roundhouse down`, `service` does so for systemd.
"""
