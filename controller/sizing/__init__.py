"""Memory of replicas, in MiB. `estimator` predicts it from model files, `sampler` measures it while engines run,
`history` stores the measurements, `requirements` combines both for the plan.
"""
