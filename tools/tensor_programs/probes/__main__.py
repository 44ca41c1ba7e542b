"""`python -m tools.tensor_programs.probes` writes the probes that ship."""

from __future__ import annotations

import gzip

from embeddb.tensors.tensor_text import tensor_text
from indexer.programs.tensors import PROBES
from tools.tensor_programs.probes import generate_probes

if __name__ == "__main__":
    texts = b",\n".join(map(tensor_text, generate_probes()))
    PROBES.write_bytes(gzip.compress(b"[" + texts + b"]", 9, mtime=0))
