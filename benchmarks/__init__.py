"""Measurements. Each module runs by itself: ``python -m benchmarks.main_job``."""
