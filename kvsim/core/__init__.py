"""The sans-IO core: what to cache, what to evict, what to run next. Decisions only."""
