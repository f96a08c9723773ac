"""The page: a local server that asks the same questions as the command line (extra ``web``)."""
