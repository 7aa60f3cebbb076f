"""The layout of a tensor that the self-check reads, against what ggml's own functions say.

An upgrade of llama.cpp that changes the layout fails here by name, and elsewhere with a crash.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from specd.engine.backend import Batch
from specd.engine.llama import library, probe
from specd.engine.llama.model import LlamaModel
from tests.engine.llama.conftest import BATCH_INVARIANT, TARGET

F32, I32 = 0, 26
#: Operations that have further names.
UNARY, GLU = b"UNARY", b"GLU"

P, N, Z = ctypes.c_void_p, ctypes.c_int64, ctypes.c_size_t


class InitParams(ctypes.Structure):
    _fields_ = (("mem_size", Z), ("mem_buffer", P), ("no_alloc", ctypes.c_bool))


make_tensor = library.native_function("ggml_new_tensor_4d", P, P, ctypes.c_int, N, N, N, N)
multiply = library.native_function("ggml_mul_mat", P, P, P, P)
multiply_chosen = library.native_function("ggml_mul_mat_id", P, P, P, P, P)
add = library.native_function("ggml_add", P, P, P, P)
n_elements = library.native_function("ggml_nelements", N, P)
operation_name = library.native_function("ggml_op_name", ctypes.c_char_p, ctypes.c_int)


@pytest.fixture
def graph() -> Iterator[Any]:
    """Yield a ggml context that computes nothing."""
    library.start()
    begin = library.native_function("ggml_init", P, InitParams)
    context = begin(InitParams(2**20, None, True))
    assert context
    yield context
    library.native_function("ggml_free", None, P)(context)


class Facts(NamedTuple):
    """A result of a pass: fields read through the layout, then ggml's own values."""

    kind: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    operation: int
    sources: tuple[int | None, ...]
    n_elements: int
    n_bytes: int
    description: bytes


def metadata_of(tensor: int) -> Facts:
    head = probe.Tensor.from_address(tensor)
    return Facts(
        kind=head.kind,
        extents=tuple(head.extents),
        strides=tuple(head.strides),
        operation=head.operation,
        sources=tuple(head.sources),
        n_elements=n_elements(tensor),
        n_bytes=probe.n_bytes_of(tensor),
        description=probe.operation_of(tensor),
    )


def assert_sizes_agree(tensor: Facts) -> None:
    assert math.prod(tensor.extents) == tensor.n_elements
    per_block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(tensor.kind)]
    assert tensor.strides[0] == block_bytes
    rest = zip(tensor.extents[1:], tensor.strides[1:], strict=True)
    behind = sum((extent - 1) * stride for extent, stride in rest)
    assert tensor.extents[0] // per_block * block_bytes + behind == tensor.n_bytes


def assert_layout(graph: Any) -> None:
    """Compare the layout with ggml's functions, for tensors with known contents."""
    weights = make_tensor(graph, F32, 5, 7, 3, 1)
    rows = make_tensor(graph, F32, 5, 2, 4, 1)
    chosen = make_tensor(graph, I32, 2, 4, 1, 1)
    product = multiply_chosen(graph, weights, rows, chosen)
    one = make_tensor(graph, F32, 5, 7, 1, 1)
    plain = multiply(graph, one, rows)
    total = add(graph, product, product)
    made = {
        weights: ((5, 7, 3, 1), ()),
        rows: ((5, 2, 4, 1), ()),
        chosen: ((2, 4, 1, 1), ()),
        product: ((7, 2, 4, 1), (weights, rows, chosen)),
        plain: ((7, 2, 4, 1), (one, rows)),
        total: ((7, 2, 4, 1), (product, product)),
    }
    numbers: dict[bytes, set[int]] = {}
    for address, (extents, sources) in made.items():
        tensor = metadata_of(address)
        assert tensor.extents == extents
        assert_sizes_agree(tensor)
        assert tensor.sources == (*sources, *[None] * (10 - len(sources)))
        numbers.setdefault(tensor.description, set()).add(tensor.operation)
    assert numbers.keys() == {b"NONE", b"MUL_MAT", b"MUL_MAT_ID", b"ADD"}
    # Each operation has one number, and no other operation has it.
    assert all(len(found) == 1 for found in numbers.values())
    assert len(set.union(*numbers.values())) == len(numbers)
    assert numbers[b"NONE"] == {0}


class Listed(probe.ProbeContext):
    """A context that records each result of a pass and the factors of each multiplication."""

    def __init__(self, *arguments: Any, **fields: Any) -> None:
        self.results: list[Facts] = []
        #: For each multiplication: the first factor's name, the first factor, the other factor.
        self.factors: list[tuple[bytes, Facts, Facts]] = []
        super().__init__(*arguments, **fields)

    def _watch(self, tensor: Any, ask: bool, _user_data: Any) -> bool:
        if ask and self._watching:
            result = metadata_of(tensor)
            self.results.append(result)
            if result.description == b"MUL_MAT":
                left, right = result.sources[:2]
                assert left is not None
                assert right is not None
                self.factors.append((probe.name_of(left), metadata_of(left), metadata_of(right)))
        return False


@pytest.fixture
def listed(graph: Any) -> Iterator[Listed]:
    assert_layout(graph)
    model = LlamaModel(str(TARGET), library.start())
    context = Listed(
        model,
        n_ctx=64,
        n_slots=1,
        n_batch=32,
        n_outputs=1,
        n_threads=1,
        n_rewind=4,
        **BATCH_INVARIANT,
    )
    try:
        yield context
    finally:
        context.close()
        model.close()


def test_the_tensor_layout_matches_this_llama_cpp(graph: Any) -> None:
    assert_layout(graph)


def test_the_probe_reads_a_pass_as_ggml_does(listed: Listed) -> None:
    batch = Batch()
    for position in range(5):
        batch.add(3 + position, position, 0, wants_logits=position == 4)
    listed.decode(batch)
    assert len({tensor.description for tensor in listed.results}) > 5
    for tensor in listed.results:
        assert_sizes_agree(tensor)
        assert operation_name(tensor.operation) in {tensor.description, UNARY, GLU}
    products = [tensor for tensor in listed.results if tensor.description == b"MUL_MAT"]
    for product, (_, left, right) in zip(products, listed.factors, strict=True):
        assert left.extents[0] == right.extents[0]
        assert product.extents == (left.extents[1], *right.extents[1:])
        assert not any(product.sources[2:])
    assert sum(b".weight" in name for name, _, _ in listed.factors) >= 7
