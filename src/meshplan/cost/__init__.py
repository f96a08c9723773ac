"""The cost room."""
