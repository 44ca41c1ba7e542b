"""Upload of an untrusted matrix file: received within limits, read, and removed."""

from __future__ import annotations

import re
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import anyio
from starlette.exceptions import HTTPException

from embeddb.core.errors import MatrixError
from embeddb.ui.serve import reading
from embeddb.ui.serve.reading import Limits, Upload, read_apart

if TYPE_CHECKING:
    from starlette.requests import Request

#: Time limit of a body, in seconds.
BODY_S = 60.0
_MOST_NAME = 200
_SUFFIX = re.compile(r"(\.[a-z][a-z0-9]{0,9})?(\.gz)?$")


def plain_name(text: str) -> str:
    """A file name without folders and of bounded length; `upload` if nothing is left."""
    name = PurePosixPath(text.replace("\\", "/")).name[-_MOST_NAME:]
    name = "".join(c for c in name if c.isprintable() and not "\ud800" <= c <= "\udfff")
    return name.strip(" .") or "upload"


@asynccontextmanager
async def received(request: Request, name: str, most: int) -> AsyncIterator[Path]:
    """The body as a temporary file of at most `most` bytes.

    Raises: HTTPException 411, 413, 415 or 408 for a body that is empty, too large, encoded or slow.
    """
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise HTTPException(415, "send the file as it is, without a content encoding")
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and (len(declared) > 18 or int(declared) > most):
        raise _too_large(most)
    suffix = _SUFFIX.search(name.lower())
    with tempfile.TemporaryDirectory(prefix="embeddb-ask-") as folder:
        path = Path(folder) / f"matrix{suffix[0] if suffix else ''}"
        size = 0
        try:
            with anyio.fail_after(BODY_S):
                async with await anyio.open_file(path, "wb") as out:
                    async for chunk in request.stream():
                        size += len(chunk)
                        if size > most:
                            raise _too_large(most)
                        await out.write(chunk)
        except TimeoutError:
            raise HTTPException(408, f"the file was not received within {BODY_S:g} s") from None
        if not size:
            raise HTTPException(400, "the body is empty: send the matrix file itself")
        yield path


def _too_large(most: int) -> HTTPException:
    text = f"the file is larger than {most / 1e6:g} MB: start the server with --max-upload"
    return HTTPException(413, text)


async def read_upload(path: Path, name: str, most: int) -> Upload:
    """Read an uploaded file. Raises: MatrixError with the uploaded name in place of the path;
    HTTPException 504 after the time limit."""
    stem = name[:-3] if name.lower().endswith(".gz") else name
    try:
        limits = Limits.of_upload(most, path.stat().st_size)
        return await read_apart(path, PurePosixPath(stem).stem or name, limits)
    except TimeoutError:
        raise HTTPException(504, f"{name} was not read within {reading.READ_S:g} s") from None
    except MatrixError as e:
        hint = "" if "format=" in e.hint else e.hint
        raise MatrixError(e.reason, where=name, line=e.line, hint=hint) from None
