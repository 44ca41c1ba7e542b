"""Programs of DaCe: `.sdfg` files, read without DaCe, and a driver that runs DaCe in a separate
interpreter."""
