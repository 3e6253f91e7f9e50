"""The algebra of imagined blocks: pure functions of tensors. It imports torch, and nothing else of repopt."""
