"""Make traces: prompt structures and arrivals, put together freely; all seeded.

Only `random()` is drawn, whose sequence Python promises to keep, so a seed means the same trace in
every version.
"""

from __future__ import annotations

from kvsim.trace.synthesis.agents import Agents
from kvsim.trace.synthesis.chat import Chat
from kvsim.trace.synthesis.making import WORKLOADS, parse_workload, synthesize
from kvsim.trace.synthesis.model_file import load_model, write_model
from kvsim.trace.synthesis.rag import Rag
from kvsim.trace.synthesis.session_model import (
    PURPOSE,
    FitReport,
    RequestClass,
    SessionModel,
    SharedPrefix,
)
from kvsim.trace.synthesis.sessions import Turn, Workload
from kvsim.trace.synthesis.starts import STARTS, Bursts, Diurnal, Poisson, Starts, parse_starts
from kvsim.trace.synthesis.system_prompts import SystemPrompts

__all__ = [
    "PURPOSE",
    "STARTS",
    "WORKLOADS",
    "Agents",
    "Bursts",
    "Chat",
    "Diurnal",
    "FitReport",
    "Poisson",
    "Rag",
    "RequestClass",
    "SessionModel",
    "SharedPrefix",
    "Starts",
    "SystemPrompts",
    "Turn",
    "Workload",
    "load_model",
    "parse_starts",
    "parse_workload",
    "synthesize",
    "write_model",
]
