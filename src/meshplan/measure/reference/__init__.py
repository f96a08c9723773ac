"""A real decoder trained with exactly a plan, on CPU (gloo) or GPUs (NCCL). Needs torch."""
