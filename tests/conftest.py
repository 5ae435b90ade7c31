"""What every test shares: hypothesis profiles, and the public traces where they are at hand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# No test opens a window, and a plot is the same with a display as without.
os.environ["MPLBACKEND"] = "Agg"

# The same examples in every run: a red run is red again. `make thorough` looks for new ones
# (--hypothesis-profile=thorough).
settings.register_profile(
    "default", derandomize=True, max_examples=50, stateful_step_count=30, deadline=None
)
settings.register_profile(
    "thorough",
    derandomize=False,
    max_examples=2000,
    stateful_step_count=100,
    deadline=None,
    print_blob=True,
)
settings.load_profile("default")


@pytest.fixture(scope="session")
def public_traces() -> Path:
    """Return the folder of public traces that KVSIM_TRACES names; skip the test if there is none.

    They are data of others and no part of the project, so they may be absent.
    """
    folder = os.environ.get("KVSIM_TRACES", "")
    if not folder:
        pytest.skip("KVSIM_TRACES does not name a folder with the public traces")
    if not Path(folder).is_dir():
        pytest.skip(f"KVSIM_TRACES names {folder}, which is not a folder")
    return Path(folder)
