"""The timing simulator: a heap of virtual instants, fairly shared links, seeded faults."""

from kvsim.backends.sim.backend import SimBackend

__all__ = ["SimBackend"]
