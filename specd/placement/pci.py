"""Read what Linux knows about a GPU by its PCI address, without the GPU's own libraries."""

from __future__ import annotations

from pathlib import Path

_VENDORS = {"0x1002": "amd", "0x10de": "nvidia", "0x8086": "intel"}


def vendor(bus_id: str, root: Path = Path("/")) -> str:
    """Return the vendor, "" if unknown.  root: the folder that holds sys/."""
    return _VENDORS.get(_read(bus_id, "vendor", root), "")


def memory(bus_id: str, root: Path = Path("/")) -> tuple[int, int] | None:
    """Return total and free bytes of its memory; None unless AMD's driver reports them."""
    total, used = (_read(bus_id, f"mem_info_vram_{what}", root) for what in ("total", "used"))
    if not (total.isdigit() and used.isdigit()):
        return None
    return int(total), max(int(total) - int(used), 0)


def _read(bus_id: str, name: str, root: Path) -> str:
    if not bus_id:
        return ""
    try:
        return (root / "sys/bus/pci/devices" / bus_id / name).read_text().strip()
    except OSError:
        return ""
