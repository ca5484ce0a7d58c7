"""What operators and gateways are told: `model_status` computes each model's state, `state_machine` lists the legal
steps, `routing_table` builds the table for gateways. Pure.
"""
