"""Search: enumerate the plans of a space, drop the invalid, price the rest, rank them."""
