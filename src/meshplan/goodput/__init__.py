"""A whole training run: how long, how much energy and money, and what failures take of it."""
