"""The old place of `kvsim.backends.region`, from before transports used it as well."""

from kvsim.backends.region import MemoryKind, Region

__all__ = ["MemoryKind", "Region"]
