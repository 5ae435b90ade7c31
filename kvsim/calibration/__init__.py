"""What copies cost on a machine: measured with the tensor backend itself, kept as a TOML file."""

from __future__ import annotations

from kvsim.calibration.file import load_calibration, save_calibration
from kvsim.calibration.measure import calibrate
from kvsim.calibration.result import Calibration, Measured

__all__ = ["Calibration", "Measured", "calibrate", "load_calibration", "save_calibration"]
