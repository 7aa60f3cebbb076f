"""A process killed at each of its writes: the old or the new state is complete, without litter.

`writers.py` has the writers, `killed.py` kills them.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from specd.install import layout
from specd.pairs import user_file
from specd.pairs.history import History
from specd.pairs.rule_files import read_rules
from specd.pairs.rules import USER
from specd.pairs.vocabularies import Vocabularies
from specd.placement import MemoryCorrections
from specd.registry.authentication import FILE
from specd.store import Library, StoreWriter
from specd.store.name import parse
from tests.faults.writers import KEY, LEARNED, REGISTRY, UPLOADED, WRITERS
from tests.gguf_files import OllamaStore, write_llama
from tests.registry.fake_registry import FakeRegistry
from tests.store.manifests import CONFIG, check_whole, digest, manifest
from tests.store.test_concurrent_changes import check_and_clear, start

ROOT: Final = Path(__file__).parents[2]
#: Two writes of its download, and two states.
PULLED: Final = b"pulled " * 2000


@dataclass(frozen=True, slots=True)
class Row:
    """before: makes the initial folder.  state: what a new reader sees; fails on a partial state.

    changes: whether the state differs when the writer is done.
    """

    before: Callable[[Path], None]
    state: Callable[[Path], object]
    remove_leftovers: Callable[[Path], None]
    changes: bool = True


# --------------------------------------------------------------------------- stores


def store_before(root: Path) -> None:
    writer = StoreWriter(root)
    for layer in (b"old layer", b"shared", CONFIG, b"unused"):
        writer.put(layer)
    writer.publish(parse("m"), manifest(b"old layer", b"shared"))
    writer.publish(parse("other"), manifest(b"shared"))
    (root / ".specd-0123").write_bytes(b"{")
    (root / "blobs" / f"sha256-{'0' * 64}-partial").write_bytes(b"half")
    age(root)


def models_before(root: Path) -> None:
    OllamaStore(root).add("gguf", weights=write_llama(root.parent / "weights.gguf"))


def is_blob(root: Path) -> object:
    check_whole(root)
    return (root / "blobs" / digest(b"new layer").replace(":", "-")).exists()


def is_uploaded(root: Path) -> object:
    check_whole(root)
    return StoreWriter(root).has_blob(digest(UPLOADED))


def made_models(root: Path) -> object:
    check_whole(root)
    names = [model.name for model in Library(root, demo=False).list()]
    return [Library(root).show(name).system for name in sorted(names)]


def prune(root: Path) -> None:
    StoreWriter(root).prune()


# --------------------------------------------------------------------------- files of state


def history_before(folder: Path) -> None:
    kept = History(folder / "history.json")
    kept.put(msgspec.structs.replace(KEY, target="old"), LEARNED)
    assert kept.save()


def known_pairs(folder: Path) -> object:
    kept = {entry.key.target: entry.history for entry in History(folder / "history.json").entries()}
    assert not list(folder.glob("*.damaged"))
    return kept


def damaged_before(folder: Path) -> None:
    (folder / "history.json").write_bytes(b"{")


def what_is_damaged(folder: Path) -> object:
    [left] = [path for path in folder.iterdir() if path.read_bytes() == b"{"]
    return left.name


def memory_before(folder: Path) -> None:
    MemoryCorrections(folder / "memory.json").record_process_bytes("old", 2**20)


def known_memory(folder: Path) -> object:
    known = dict(MemoryCorrections(folder / "memory.json").process_bytes())
    assert not list(folder.glob("*.damaged"))
    return known


def vocabularies_before(folder: Path) -> None:
    (folder / "blobs").mkdir()
    known = Vocabularies(folder / "vocabularies.json")
    for seed in (1, 2):
        weights = write_llama(folder / "blobs" / f"sha256-{seed:064}", seed=seed)
        if seed == 1:
            known.facts(weights)
    known.save()


def vocabularies_again(folder: Path) -> None:
    """Run the writer after adding a file with another header."""
    write_llama(folder / "blobs" / f"sha256-{3:064}", seed=3)
    WRITERS["vocabularies"](folder)


def known_files(folder: Path) -> object:
    known = set(Vocabularies(folder / "vocabularies.json").known.files)
    assert not list(folder.glob("*.damaged"))
    return known


def no_key(folder: Path) -> None:
    (folder / "some").touch()


def is_key(folder: Path) -> object:
    if not (folder / FILE).exists():
        return False
    return bool(load_ssh_private_key((folder / FILE).read_bytes(), password=None))


def pairs_before(folder: Path) -> None:
    (folder / "specd").mkdir()
    text = '# mine\n[[pair]]\ntarget = "old"\ndrafters = ["small"]\n'
    (folder / "specd" / "pairs.toml").write_text(text)


def rules(folder: Path) -> object:
    file = folder / "specd" / "pairs.toml"
    if not file.exists():
        return None
    return [(rule.targets, rule.drafters) for rule in read_rules(file, USER)]


def another_rule(folder: Path) -> None:
    user_file.add(folder / "specd" / "pairs.toml", "another", [])


# --------------------------------------------------------------------------- an installation


def settings_before(folder: Path) -> None:
    file = folder / layout.ENV_FILE.lstrip("/")
    file.parent.mkdir(parents=True)
    file.write_text("# of an older one\n")
    file.chmod(0o640)


def installed_settings(folder: Path) -> object:
    file = folder / layout.ENV_FILE.lstrip("/")
    return file.read_bytes(), oct(file.stat().st_mode)


def command_before(folder: Path) -> None:
    link = folder / layout.COMMAND.lstrip("/")
    link.parent.mkdir(parents=True)
    link.with_name("old").touch()
    link.with_name("new").touch()
    link.symlink_to("old")


def installed_command(folder: Path) -> object:
    return (folder / layout.COMMAND.lstrip("/")).readlink()


STORE: Final = Row(store_before, check_whole, prune)
ROWS: Final = {
    "put": Row(store_before, is_blob, prune),
    "publish": STORE,
    "delete": STORE,
    "copy": STORE,
    "copy_over": STORE,
    "prune": Row(store_before, check_whole, prune, changes=False),
    "receive": Row(store_before, is_uploaded, prune),
    "pull": STORE,
    "create": Row(models_before, made_models, prune),
    "identity": Row(no_key, is_key, WRITERS["identity"]),
    "history": Row(history_before, known_pairs, WRITERS["history"]),
    "forget": Row(history_before, known_pairs, WRITERS["history"]),
    "memory": Row(memory_before, known_memory, WRITERS["memory"]),
    "vocabularies": Row(vocabularies_before, known_files, vocabularies_again),
    "set_aside": Row(damaged_before, what_is_damaged, lambda _: None),
    "pairs_add": Row(pairs_before, rules, another_rule),
    "pairs_remove": Row(pairs_before, rules, another_rule),
    "settings_file": Row(settings_before, installed_settings, WRITERS["settings_file"]),
    "command": Row(command_before, installed_command, WRITERS["command"]),
}
#: Of each kind of file one that is always tried.
QUICK: Final = {"publish", "prune", "history", "pairs_add", "settings_file"}


@pytest.mark.contract("store.atomic")
@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.system) for name in ROWS],
)
@pytest.mark.timeout(300)
async def test_a_writer_killed_at_any_write_leaves_the_old_or_the_new_state(
    tmp_path: Path, name: str
) -> None:
    row, folder = ROWS[name], tmp_path / "killed"
    (folder / "before").mkdir(parents=True)
    row.before(folder / "before")
    async with FakeRegistry().serve() as registry:
        registry.add("me/m/x", PULLED)
        await killed(name, folder, registry.url)
    old, *seen, new = map(row.state, (folder / "before", *numbered(folder)))
    assert seen, "the writer wrote nothing"
    assert all(state in (old, new) for state in seen)
    assert (new != old) == row.changes
    again = [folder / f"{n}-again" for n in range(1, len(seen) + 1)]
    assert [row.state(each) for each in again] == [new] * len(again)
    # Unfinished files are removed when they are old; other files stay.
    *dead, whole = numbered(folder)
    for each in (folder / "before", *dead, *again, whole):
        age(each)
        row.remove_leftovers(each)
    kept = files(whole)
    assert [files(each) for each in again] == [kept] * len(again)
    assert [files(each) for each in dead] == [
        kept if state == new else files(folder / "before") for state in seen
    ]


async def killed(name: str, folder: Path, registry: str) -> None:
    command = (sys.executable, "-m", "tests.faults.killed", name, str(folder))
    variables = {"PYTHONPATH": str(ROOT), REGISTRY: registry}
    process = await asyncio.create_subprocess_exec(*command, env=os.environ | variables)
    assert await process.wait() == 0


def numbered(folder: Path) -> list[Path]:
    """Return the folders that killed writers left, then that of the writer that finished."""
    found = [int(path.name) for path in folder.iterdir() if path.name.isdecimal()]
    return [folder / str(n) for n in sorted(found)]


def age(folder: Path) -> None:
    """Set the times of all files in the folder years back."""
    for path in (folder, *folder.rglob("*")):
        os.utime(path, (0, 0))


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.contract("store.atomic")
@pytest.mark.system
@pytest.mark.timeout(300)
def test_other_writers_continue_after_one_is_killed(tmp_path: Path) -> None:
    """A killed writer's locks are free, and its files block no other writer."""
    for step in range(5, 200, 13):
        racers = [start(tmp_path, step), start(tmp_path, step, step)]
        assert [racer.wait() for racer in racers] == [0, -signal.SIGKILL]
    check_and_clear(tmp_path)
    age(tmp_path)
    prune(tmp_path)
    assert not files(tmp_path)
