"""SpMM, SDDMM and SpMV on NVIDIA GPUs: kernels, matrix formats, compilation and launch."""
