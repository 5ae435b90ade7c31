"""Sweeps: one replay for each trace, policy, capacity, variant and seed, and what they say."""
