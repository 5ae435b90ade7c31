"""Eviction policies: one file each, and the table that names them.

A third party adds one without touching this file, through the entry point group
`kvsim.policies`: the name maps to a class or function that takes a `PolicyContext` and returns an
`EvictionPolicy` or a `BlockPolicy`.
"""

from __future__ import annotations

from kvsim.policies.registry import POLICIES, policy_factory, policy_names

__all__ = ["POLICIES", "policy_factory", "policy_names"]
