"""`rdma`: what it leaves in the process, and how NIXL's errors are named."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack, closing

import numpy as np
import pytest

from kvsim.backends.region import MemoryKind, Region
from kvsim.backends.transports import find_transport, nixl, open_transport, rdma
from kvsim.backends.transports.description import decode_description, encode_description
from kvsim.backends.transports.memory import MemoryFile
from kvsim.backends.transports.pieces import Pieces
from kvsim.backends.transports.ports import (
    Connected,
    ConnectFailed,
    EndpointConfig,
    PeerId,
    Reason,
    WriteFailed,
)
from kvsim.errors import ConfigError

MISSING = find_transport("rdma").find_missing()
needs_nixl = pytest.mark.skipif(MISSING is not None, reason=f"rdma: {MISSING}")
LONG_NS = 30 * 10**9
ONE, TWO = PeerId(0, 0), PeerId(1, 0)


def config(peer: PeerId) -> EndpointConfig:
    return EndpointConfig(peer_id=peer, key=bytes(32), connect_timeout_ns=LONG_NS)


@needs_nixl
def test_the_environment_is_as_it_was() -> None:
    before = dict(os.environ)
    with MemoryFile(64) as memory, closing(open_transport("rdma", config(ONE))) as end:
        end.register(memory.region)
        assert dict(os.environ) == before


@needs_nixl
def test_memory_that_the_peer_has_not_registered_is_a_named_end() -> None:
    # The description says 8192 bytes where 4096 are registered: a peer of another run, a bug.
    with ExitStack() as stack:
        memories = [stack.enter_context(MemoryFile(4096 * (2 - i))) for i in range(2)]
        one, two = (
            stack.enter_context(closing(open_transport("rdma", config(p)))) for p in (ONE, TWO)
        )
        one.register(memories[0].region)
        found = decode_description("rdma", TWO, two.register(memories[1].region))
        one.connect(TWO, encode_description("rdma", TWO, 8192, found.address))
        assert one.poll(LONG_NS) == [Connected(TWO)]
        far = time.monotonic_ns() + LONG_NS
        one.write(TWO, 0, Pieces.of([(0, 4096, 4096)]), deadline_at=far, tag=b"t")
        (end,) = one.poll(LONG_NS)
        assert isinstance(end, WriteFailed)
        assert end.reason is Reason.WRITE
        assert end.detail.startswith("nixl")
        assert two.poll() == []
        one.write(TWO, 1, Pieces.of([(0, 0, 4096)]), deadline_at=far)
        assert type(one.poll(LONG_NS)[0]).__name__ == "WriteDone"


@needs_nixl
def test_an_address_that_is_none_of_an_agent_is_a_named_failure() -> None:
    with MemoryFile(64) as memory, closing(open_transport("rdma", config(ONE))) as end:
        end.register(memory.region)
        for address in (b"", b"\x92\xc4\x04evil\x00"):
            end.connect(TWO, encode_description("rdma", TWO, 64, address))
            (failed,) = end.poll(LONG_NS)
            assert isinstance(failed, ConnectFailed)
            assert failed.reason is Reason.CONNECT
            assert "rank 0 of instance 1 cannot be reached" in failed.detail


@needs_nixl
def test_memory_of_a_gpu_is_refused() -> None:
    end = open_transport("rdma", config(ONE))
    with pytest.raises(ConfigError, match="moves memory of the host here"):
        end.register(Region(4096, 64, MemoryKind.GPU))
    end.close()


def test_without_nixl_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nixl, "_MODULES", ("not_here",))
    memory = np.zeros(64, np.uint8)
    end = rdma.open_endpoint(config(ONE))
    with pytest.raises(ConfigError, match="pip install --no-deps nixl-cu12"):
        end.register(Region(memory.ctypes.data, 64, MemoryKind.HOST))
    end.close()
