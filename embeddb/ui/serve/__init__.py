"""A small local web interface to a database: `build_app` builds it, `embeddb serve` runs it.

Every page has a stable address and a JSON twin (`.json` on the same path) with the same content.
Needs the extra `serve` (starlette, uvicorn).
"""
