"""A small local page over a database: `build_app` makes it, `embeddb serve` runs it.

Every page has a stable address and a JSON twin (`.json` on the same path) that says the same.
Needs the extra `serve` (starlette, uvicorn).
"""
