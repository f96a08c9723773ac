"""meshplan: how to lay an LLM training run out over GPUs."""

__version__ = "0.1.0"
