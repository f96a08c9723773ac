"""The export room: launch files for the frameworks, and a plan read back from them."""
