"""Written from ``cove._async`` by ``tools/generate_sync.py``, but for ``_io``."""
