"""The source of both flavours. ``tools/generate_sync.py`` writes ``cove._sync`` from it."""
