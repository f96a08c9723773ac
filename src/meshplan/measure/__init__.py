"""Real runs with PyTorch: a reference engine that trains exactly a plan, its launches, and the memory check.

Modules under ``reference`` and ``memory`` import torch; nothing else here does. Commands import them
only when they run.
"""
