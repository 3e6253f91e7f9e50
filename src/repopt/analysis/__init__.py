"""What the paper's appendices look at: kernels (C), the start of a search (B), searched scales (E)."""
