"""The reconcile loop. `reconciler` observes, plans, acts and publishes; `executor` starts actions without awaiting
them; `operation_state` remembers operations under way, failures and drains; `watchers` wake the loop on edits and
runtime events.
"""
