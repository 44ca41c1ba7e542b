"""`python -m indexer.shipped EXPORT… FILE` creates the shipped file from exports. The exports of
the current one are written by `embeddb db export starter runs.jsonl.gz`, one per platform with
`--platform`."""

from __future__ import annotations

import sys
from pathlib import Path

from embeddb.core.errors import EmbeddbError
from indexer.shipped.create import ship


def main(args: list[str]) -> int:
    if len(args) < 2:
        sys.stderr.write("python -m indexer.shipped EXPORT… FILE\n")
        return 2
    *exports, to = map(Path, args)
    try:
        ship(exports, to)
    except (EmbeddbError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
