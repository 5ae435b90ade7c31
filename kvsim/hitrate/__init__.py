"""Hit rates without requests in flight: every capacity at once, every policy, and the optimum."""
