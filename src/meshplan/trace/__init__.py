"""Profiler traces read as they stream by: where each rank's step went, whoever waited for whom."""
