"""Programs of DaCe: `.sdfg` files, read without DaCe, and DaCe in an interpreter of its own."""
