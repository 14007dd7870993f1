"""The API for asyncio, and the source of the one for threads.

``.ci/make_sync.py`` makes `pyagentundo._sync` of this package: edit here, then run it.
"""
