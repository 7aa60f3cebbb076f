"""Check the GPUs that CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER leave visible, in order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd.placement.cuda import visible_gpus
from specd.placement.nvidia import Gpu


def gpu(index: int, uuid: str, *, speed: int = 0, parent: str = "") -> Gpu:
    return Gpu(
        index=index,
        bus_id=f"0000:{index:02x}:00.0",
        uuid=uuid,
        name="n",
        total_bytes=1,
        free_bytes=1,
        speed=speed,
        parent=parent,
    )


THREE = [gpu(0, "GPU-aa11"), gpu(1, "GPU-bb22"), gpu(2, "GPU-bb33")]
SPLIT = [
    gpu(0, "GPU-cc00"),
    gpu(1, "MIG-dd11", parent="GPU-dddd"),
    gpu(1, "MIG-dd22", parent="GPU-dddd"),
    gpu(2, "MIG-ee11", parent="GPU-eeee"),
]


def shown(gpus: list[Gpu], variable: str | None, order: str = "") -> list[str]:
    environ = {"CUDA_DEVICE_ORDER": order}
    if variable is not None:
        environ["CUDA_VISIBLE_DEVICES"] = variable
    return [gpu.uuid for gpu in visible_gpus(gpus, environ)]


@pytest.mark.contract("env.devices")
@pytest.mark.parametrize(
    "variable, uuids",
    [
        (None, ["GPU-aa11", "GPU-bb22", "GPU-bb33"]),
        ("", []),
        ("-1", []),
        ("1", ["GPU-bb22"]),
        ("2,0", ["GPU-bb33", "GPU-aa11"]),
        (" 1 , 0 ", ["GPU-bb22", "GPU-aa11"]),
        ("+1,0x", ["GPU-bb22", "GPU-aa11"]),
        ("GPU-bb33", ["GPU-bb33"]),
        ("GPU-bb3,GPU-a", ["GPU-bb33", "GPU-aa11"]),
    ],
)
def test_gpus_are_named_by_number_and_by_the_beginning_of_a_uuid(
    variable: str | None, uuids: list[str]
) -> None:
    assert shown(THREE, variable) == uuids


@pytest.mark.contract("env.devices")
@pytest.mark.parametrize(
    "variable, uuids",
    [
        ("0,-1,1", ["GPU-aa11"]),
        ("0,9,1", ["GPU-aa11"]),
        ("0,,1", ["GPU-aa11"]),
        ("1,none,0", ["GPU-bb22"]),
        ("0,GPU-bb22", ["GPU-aa11"]),
        ("GPU-aa11,0", ["GPU-aa11"]),
        ("GPU-aa11,GPU-zz,GPU-bb22", ["GPU-aa11"]),
        ("GPU-aa11,GPU-bb", ["GPU-aa11"]),
        ("aa11", []),
        ("all", []),
    ],
)
def test_cuda_stops_at_the_first_invalid_or_ambiguous_name(variable: str, uuids: list[str]) -> None:
    assert shown(THREE, variable) == uuids


@pytest.mark.parametrize("variable", ["0,1,0", "GPU-aa11,GPU-aa"])
def test_a_gpu_that_is_named_twice_hides_all(variable: str) -> None:
    assert shown(THREE, variable) == []


def test_the_fastest_is_the_first_unless_the_bus_decides() -> None:
    gpus = [gpu(0, "GPU-slow", speed=10), gpu(1, "GPU-mid", speed=20), gpu(2, "GPU-fast", speed=30)]
    assert shown(gpus, None) == ["GPU-fast", "GPU-slow", "GPU-mid"]
    assert shown(gpus, "0") == ["GPU-fast"]
    assert shown(gpus, "0", order="FASTEST_FIRST") == ["GPU-fast"]
    assert shown(gpus, "0", order="PCI_BUS_ID") == ["GPU-slow"]


def test_if_a_speed_is_unknown_the_bus_decides() -> None:
    gpus = [gpu(0, "GPU-a"), gpu(1, "GPU-b", speed=10), gpu(2, "GPU-c", speed=20)]
    assert shown(gpus, None) == ["GPU-a", "GPU-b", "GPU-c"]


def test_gpus_of_one_speed_stay_in_the_order_of_the_bus() -> None:
    gpus = [gpu(1, "GPU-b", speed=10), gpu(0, "GPU-a", speed=10)]
    assert shown(gpus, None) == ["GPU-a", "GPU-b"]


@pytest.mark.parametrize(
    "variable, uuids",
    [
        (None, ["MIG-dd11"]),
        ("0", ["GPU-cc00"]),
        ("1", ["MIG-dd11"]),
        ("2", ["MIG-ee11"]),
        ("0,1", ["MIG-dd11"]),
        ("MIG-dd22", ["MIG-dd22"]),
        ("MIG-ee11,MIG-dd11", ["MIG-ee11"]),
        ("GPU-cc00,MIG-dd22", ["MIG-dd22"]),
        ("GPU-dddd", ["MIG-dd11"]),
    ],
)
def test_a_process_sees_one_mig_instance_and_no_other_device(
    variable: str | None, uuids: list[str]
) -> None:
    assert shown(SPLIT, variable) == uuids


@given(
    variable=st.lists(
        st.sampled_from(["0", "1", "2", "7", "-1", "", "x", "GPU-aa11", "GPU-bb", "MIG-"])
        | st.text(alphabet="0123456789GPUMIabc-, +\x00é٣", max_size=8)
    ).map(",".join),
    order=st.sampled_from(["", "PCI_BUS_ID", "FASTEST_FIRST"]),
)
def test_no_value_shows_a_gpu_twice(variable: str, order: str) -> None:
    for gpus in (THREE, SPLIT, []):
        uuids = shown(gpus, variable, order)
        assert len(set(uuids)) == len(uuids)
        assert set(uuids) <= {gpu.uuid for gpu in gpus}
