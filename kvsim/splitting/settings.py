"""What a split run can be told beside the settings of its instances."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from math import isfinite
from typing import TYPE_CHECKING, Final

from kvsim.config import OnSendFailure, Routing, SendMode, SplitConfig
from kvsim.errors import ConfigError
from kvsim.setting_checks import check_int, choice
from kvsim.topology import NetworkConfig, find_network

if TYPE_CHECKING:
    from kvsim.cost import Hardware
    from kvsim.replay_config import JsonValue

DEFAULT_LINK: Final = "ib-400g"

_GB: Final = 10**9
_LARGEST_GB: Final = 10**6  # a thousand times the fastest wire there is


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitSettings:
    """Prefill on some instances, decode on others.

    Parameters
    ----------
    prefill, decode
        How many instances of each.
    tp
        Tensor-parallel sizes "P:D" of the prefill and the decode instances, or one number for
        both. Default: all GPUs of the hardware, each.
    link
        What lies between them: a name of `kvsim.topology.NETWORKS`, a `NetworkConfig`, or a number
        of GB/s (10**9 bytes) a card, everything else as in "ib-400g".
    send
        "layerwise", or "at_end": the whole prompt when it is computed, to compare with.
    on_send_failure
        "recompute" or "fail".
    routing
        "least_loaded", "round_robin" or "cache_aware".
    send_timeout_ns, reserve_timeout_ns, max_receiving
        See `kvsim.config.SplitConfig`.

    Raises
    ------
    ConfigError
        If a value is impossible; the message begins with the name of the setting.
    UnknownNameError
        If there is no network or rule of a name.
    """

    prefill: int = 1
    decode: int = 1
    tp: str | int | None = None
    link: str | float | NetworkConfig = DEFAULT_LINK
    send: str = SendMode.LAYERWISE.value
    on_send_failure: str = OnSendFailure.RECOMPUTE.value
    routing: str = Routing.LEAST_LOADED.value
    send_timeout_ns: int | None = None
    reserve_timeout_ns: int | None = None
    max_receiving: int | None = None

    def __post_init__(self) -> None:
        check_int("prefill", self.prefill, 1)
        check_int("decode", self.decode, 1)
        _ = self.network, self.sizes
        self.core(max_attempts=1)

    @property
    def network(self) -> NetworkConfig:
        """What lies between the instances."""
        link = self.link
        if isinstance(link, NetworkConfig):
            return link
        if isinstance(link, str):
            try:
                link = float(link)
            except ValueError:
                return find_network(str(self.link))
        if not isfinite(link) or not 0 < link <= _LARGEST_GB or isinstance(self.link, bool):
            raise ConfigError(
                f"link must be the name of a network or GB/s a card, above 0 and at most"
                f" {_LARGEST_GB:,}, not {self.link!r}"
            )
        speed = replace(find_network(DEFAULT_LINK), name=f"{link:g} GB/s")
        return speed.at(max(1, round(link * _GB)))

    @property
    def sizes(self) -> tuple[int | None, int | None]:
        """Tensor-parallel sizes of prefill and decode; None: as the hardware has."""
        if self.tp is None:
            return None, None
        parts = str(self.tp).split(":")
        if len(parts) > 2 or not all(part.isascii() and part.isdigit() for part in parts):
            raise ConfigError(
                f"tp must be two sizes, as '4:2' for prefill and decode, or one, not {self.tp!r}"
            )
        first, last = int(parts[0]), int(parts[-1])
        check_int("tp", first, 1)
        check_int("tp", last, 1)
        return first, last

    def machine(self, hardware: Hardware, size: int | None) -> Hardware:
        """Return the machine of an instance of `size` GPUs."""
        if size is None or size == hardware.num_gpus:
            return hardware
        return replace(hardware, name=f"{hardware.name}, {size} GPUs", num_gpus=size)

    def core(self, *, max_attempts: int) -> SplitConfig:
        """Return the scheduler's part."""
        return SplitConfig(
            send=choice("send", self.send, SendMode),
            on_send_failure=choice("on_send_failure", self.on_send_failure, OnSendFailure),
            routing=choice("routing", self.routing, Routing),
            max_attempts=max_attempts,
            send_timeout_ns=self.send_timeout_ns,
            reserve_timeout_ns=self.reserve_timeout_ns,
            max_receiving=self.max_receiving,
        )

    def to_dict(self) -> dict[str, JsonValue]:
        """Return the settings as JSON values; a network as an object."""
        values = {name: getattr(self, name) for name in self.__slots__}
        values["link"] = asdict(self.network)
        values["tp"] = None if self.tp is None else list(self.sizes)
        return values
