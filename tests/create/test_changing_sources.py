"""Bases and uploaded files that are deleted or replaced during a create."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from specd.create import Creator
from specd.errors import InvalidRequest, ModelNotFound, StoreError
from specd.store import StoreWriter
from specd.store.name import parse
from tests.create.test_creator import Workshop, refuse_broken
from tests.gguf_files import Shape, write_llama


class ChangingWriter(StoreWriter):
    """change: called once, after n_before calls of `blob_path`."""

    change: Callable[[], object] | None = None
    n_before = 0

    def blob_path(self, digest: str) -> Path:
        self.n_before -= 1
        if self.change is not None and self.n_before < 0:
            change, self.change = self.change, None
            change()
        return super().blob_path(digest)


class ChangingWorkshop(Workshop):
    def __init__(self, root: Path) -> None:
        super().__init__(root / "models")
        self.changing = ChangingWriter(self.store.root)
        self.creator = Creator(self.changing, check_template=refuse_broken)
        self.weights = [
            write_llama(root / f"{n}.gguf", shape=Shape(n_layer=n), seed=n) for n in (1, 2)
        ]
        self.store.add("base", weights=self.weights[0])

    def delete(self) -> None:
        self.writer.delete(parse("base"))

    def replace(self) -> None:
        self.delete()
        self.store.add("base", weights=self.weights[1])


@pytest.fixture
def shop(tmp_path: Path) -> ChangingWorkshop:
    return ChangingWorkshop(tmp_path)


async def test_a_base_deleted_during_the_create_is_not_found(shop: ChangingWorkshop) -> None:
    shop.changing.change = shop.delete
    with pytest.raises(ModelNotFound, match="model 'base:latest' not found"):
        await shop.make(base="base")
    assert shop.library.names() == ()


async def test_a_base_replaced_during_the_create_is_read_again(
    shop: ChangingWorkshop,
) -> None:
    shop.changing.change = shop.replace
    await shop.make(base="base")
    assert shop.layer("model") == shop.weights[1].read_bytes()


async def test_a_file_whose_blob_is_removed_is_reported_as_missing(
    shop: ChangingWorkshop,
) -> None:
    """The blob was also the weights of a model, which is deleted with them."""
    digest = shop.upload(shop.weights[0])
    shop.changing.n_before = 2  # it has been found, but is not locked yet
    shop.changing.change = shop.delete
    with pytest.raises(InvalidRequest, match=f'blob "{digest}" not found'):
        await shop.make(files={"model.gguf": digest})
    assert shop.changing.change is None


async def test_a_base_whose_weights_are_gone_is_damaged(shop: ChangingWorkshop) -> None:
    shop.changing.change = shop.store.weights_path("base").unlink
    with pytest.raises(StoreError, match="cannot read"):
        await shop.make(base="base")
