"""Peak memory and collectives of one rank's real module, under fake tensors. Needs torch."""
