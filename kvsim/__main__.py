"""Run the command line as `python -m kvsim`."""

from __future__ import annotations

from kvsim.cli import main

raise SystemExit(main())
