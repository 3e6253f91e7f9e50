"""Triton kernels, for a GPU: imported only where one is used."""
