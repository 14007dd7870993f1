"""The API for threads, made of `pyagentundo._aio` by ``.ci/make_sync.py``: edit there."""
