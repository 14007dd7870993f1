"""Measurements: ``python -m benchmarks.core`` and ``python -m benchmarks.main_job``."""
