"""Nobody from another machine is let in, unless an endpoint was told to."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from kvsim.backends.transports import TRANSPORTS, find_transport, open_transport
from kvsim.backends.transports.memory import MemoryFile
from kvsim.backends.transports.ports import EndpointConfig, PeerId

LISTENING = "0A"  # the state, as the kernel's table of sockets has it


def listeners() -> set[str]:
    """Return the addresses, as hexadecimal digits, that this process listens on over TCP."""
    own = set()
    for file in Path("/proc/self/fd").iterdir():
        try:
            own.add(file.readlink().name)
        except OSError:
            continue  # the one that the folder was read through
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/self/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING and f"socket:[{fields[9]}]" in own:
                found.add(fields[1].partition(":")[0])
    return found


@pytest.mark.skipif(not Path("/proc/self/net/tcp").exists(), reason="no table of sockets here")
@pytest.mark.parametrize("name", list(TRANSPORTS))
def test_an_endpoint_listens_on_the_loopback_alone(name: str) -> None:
    missing = find_transport(name).find_missing()
    if missing is not None:
        pytest.skip(f"{name}: {missing}")
    before = listeners()
    config = EndpointConfig(peer_id=PeerId(0, 0), key=bytes(32))
    with MemoryFile(64) as memory, closing(open_transport(name, config)) as end:
        end.register(memory.region, memory_file=memory.file)
        # 127.0.0.1, the bytes of a word of a little-endian machine, the last first.
        assert listeners() - before <= {"0100007F"}
