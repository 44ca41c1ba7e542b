"""Networks and ablations of papers that the product does not ship: each trained and judged by one
command, `python -m reproductions.NAME --help`. They use the product's samples, splits and training
loop, and are not part of the wheel."""
