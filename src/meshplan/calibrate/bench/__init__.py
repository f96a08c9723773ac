"""What runs on every rank while calibrating. Needs torch."""
