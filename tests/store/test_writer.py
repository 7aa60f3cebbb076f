"""Writes to the store: new files, removed files, and files of other writers of the format."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from specd.errors import ModelNotFound, StoreError
from specd.store import BlobLock, StoreWriter, safe_files
from specd.store.name import parse
from tests.store.manifests import digest, manifest

HOUR = 3600.0


@pytest.fixture
def writer(tmp_path: Path) -> StoreWriter:
    return StoreWriter(tmp_path)


def add(writer: StoreWriter, name: str, *layers: bytes) -> bool:
    for data in (*layers, b"{}"):
        writer.put(data)
    return writer.publish(parse(name), manifest(*layers))


def blobs_of(writer: StoreWriter) -> set[str]:
    return {path.name.replace("-", ":") for path in (writer.root / "blobs").iterdir()}


def files_of(writer: StoreWriter) -> list[str]:
    files = (path for path in writer.root.rglob("*") if path.is_file())
    return sorted(str(path.relative_to(writer.root)) for path in files)


def test_a_model_is_a_manifest_and_its_blobs(writer: StoreWriter) -> None:
    assert not add(writer, "m", b"weights")
    path = writer.root / "manifests/registry.ollama.ai/library/m/latest"
    assert path.read_bytes() == manifest(b"weights")
    assert blobs_of(writer) == {digest(b"weights"), digest(b"{}")}
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert {stat.S_IMODE(p.stat().st_mode) for p in (writer.root / "blobs").iterdir()} == {0o644}
    assert len(files_of(writer)) == 3


def test_a_blob_is_new_once(writer: StoreWriter) -> None:
    assert writer.put(b"text") == (digest(b"text"), True)
    assert writer.put(b"text") == (digest(b"text"), False)


def test_publish_removes_blobs_that_only_the_replaced_manifest_named(writer: StoreWriter) -> None:
    add(writer, "other", b"shared")
    add(writer, "m", b"old", b"shared")
    assert add(writer, "m", b"new")
    assert blobs_of(writer) == {digest(b"new"), digest(b"shared"), digest(b"{}")}
    assert not add(writer, "m", b"new")


@pytest.mark.contract("env.noprune")
def test_noprune_keeps_unused_blobs(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path, noprune=True)
    add(writer, "m", b"old")
    assert not add(writer, "m", b"new")
    assert digest(b"old") in blobs_of(writer)


def test_publish_fails_if_a_blob_is_missing(writer: StoreWriter) -> None:
    add(writer, "m", b"old")
    before = files_of(writer)
    with pytest.raises(StoreError, match=r"cannot write m:latest: the blob sha256:.* is gone"):
        writer.publish(parse("m"), manifest(b"never stored"))
    with pytest.raises(StoreError, match="is damaged"):
        writer.publish(parse("m"), b"[]")
    with pytest.raises(StoreError, match="is not a digest"):
        writer.publish(parse("m"), manifest(b"old").replace(b"sha256:", b"../../"))
    assert files_of(writer) == before


@pytest.mark.contract("names.case")
def test_names_are_found_and_replaced_ignoring_case(writer: StoreWriter) -> None:
    add(writer, "Llama3.2:1B", b"a")
    add(writer, "llama3.2:1b", b"b")
    add(writer, "LLAMA3.2:3b", b"c")
    folder = writer.root / "manifests/registry.ollama.ai/library"
    assert sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()) == [
        "Llama3.2/1B",
        "Llama3.2/3b",
    ]
    writer.delete(parse("LLAMA3.2:1b"))
    assert not (folder / "Llama3.2/1B").exists()


@pytest.mark.contract("delete.empty")
def test_delete_removes_empty_folders_and_unused_blobs(writer: StoreWriter) -> None:
    add(writer, "example.com/ns/m", b"mine", b"shared")
    add(writer, "other", b"shared")
    writer.delete(parse("example.com/ns/m"))
    assert not (writer.root / "manifests/example.com").exists()
    assert blobs_of(writer) == {digest(b"shared"), digest(b"{}")}
    with pytest.raises(ModelNotFound, match="model 'm:latest' not found"):
        writer.delete(parse("m"))


def test_no_blob_is_removed_until_the_damaged_manifest_is_deleted(
    writer: StoreWriter,
) -> None:
    add(writer, "m", b"mine")
    add(writer, "n", b"theirs")
    writer.manifest_path(parse("n")).write_bytes(b"{")
    writer.delete(parse("m"))
    assert digest(b"mine") in blobs_of(writer)
    writer.delete(parse("n"))
    assert digest(b"theirs") in blobs_of(writer)  # the digests in the damaged manifest are unknown
    assert not list((writer.root / "manifests").iterdir())


@pytest.mark.contract("copy.empty")
def test_copy_is_the_same_bytes(writer: StoreWriter) -> None:
    add(writer, "m", b"a")
    writer.copy(parse("M"), parse("ns/copy:v1"))
    target = writer.root / "manifests/registry.ollama.ai/ns/copy/v1"
    assert target.read_bytes() == manifest(b"a")
    before = writer.manifest_path(parse("m")).stat()
    writer.copy(parse("m"), parse("M"))
    assert writer.manifest_path(parse("m")).stat() == before, "the copy must not rewrite itself"
    writer.delete(parse("m"))
    assert digest(b"a") in blobs_of(writer)
    with pytest.raises(ModelNotFound):
        writer.copy(parse("m"), parse("n"))


def test_copy_over_a_model_removes_its_unused_blobs(writer: StoreWriter) -> None:
    add(writer, "m", b"a")
    add(writer, "n", b"b")
    writer.copy(parse("m"), parse("n"))
    assert blobs_of(writer) == {digest(b"a"), digest(b"{}")}


def test_a_locked_blob_is_not_removed(writer: StoreWriter) -> None:
    add(writer, "m", b"a")
    blob_lock = BlobLock(writer)
    blob_lock.add([digest(b"a")])
    blob_lock.add([digest(b"a")])
    writer.delete(parse("m"))
    assert blobs_of(writer) == {digest(b"a")}
    writer.publish(parse("n"), manifest(b"a", config=b"a"))
    blob_lock.close()
    blob_lock.close()
    writer.delete(parse("n"))
    assert not blobs_of(writer)
    blob_lock.add([digest(b"a")])  # the lock is closed, so this does nothing
    with pytest.raises(StoreError, match=r"cannot use the blob .*: No such file"):
        BlobLock(writer).add([digest(b"a")])


def test_publish_removes_blobs_that_only_its_own_lock_protects(writer: StoreWriter) -> None:
    """This happens when a model is created from itself."""
    add(writer, "m", b"old")
    writer.put(b"new")
    blob_lock = BlobLock(writer)
    blob_lock.add([digest(b"old"), digest(b"new")])
    assert writer.publish(parse("m"), manifest(b"new"), blob_lock=blob_lock)
    assert blobs_of(writer) == {digest(b"new"), digest(b"{}")}


def test_a_blob_removed_while_it_is_locked_raises_store_error(
    writer: StoreWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.put(b"a")
    plain = fcntl.flock

    def too_late(opened: int, how: int) -> None:
        writer.blob_path(digest(b"a")).unlink()
        plain(opened, how)

    monkeypatch.setattr(fcntl, "flock", too_late)
    with pytest.raises(StoreError, match=r"cannot use the blob .*: No such file"):
        BlobLock(writer).add([digest(b"a")])


def test_the_second_writer_of_a_blob_keeps_the_locked_file(
    writer: StoreWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second writer has checked for the blob before the first one writes it."""
    blob_lock, plain = BlobLock(writer), safe_files.sync
    target = writer.blob_path(digest(b"a"))

    def meanwhile(path: Path) -> None:
        monkeypatch.setattr(safe_files, "sync", plain)
        writer.put(b"a")
        blob_lock.add([digest(b"a")])
        plain(path)

    monkeypatch.setattr(safe_files, "sync", meanwhile)
    writer.put(b"a")
    safe_files.remove_if_unlocked(target)
    assert target.exists()
    assert blobs_of(writer) == {digest(b"a")}
    blob_lock.close()


def test_a_damaged_blob_is_replaced(writer: StoreWriter) -> None:
    target = writer.blob_path(digest(b"whole"))
    with writer.staged() as path:
        path.write_bytes(b"whole")
        target.write_bytes(b"cut")
        writer.keep(path, digest(b"whole"))
    assert target.read_bytes() == b"whole"


def test_bytes_are_synced_before_the_rename(
    writer: StoreWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[tuple[str, int]] = []
    fsync, replace = os.fsync, Path.replace

    def synced(opened: int) -> None:
        steps.append(("sync", os.fstat(opened).st_ino))
        fsync(opened)

    def renamed(path: Path, target: Path) -> Path:
        steps.append(("rename", path.stat().st_ino))
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", renamed)
    add(writer, "m", b"a")
    for path in (writer.blob_path(digest(b"a")), writer.manifest_path(parse("m"))):
        file, folder = path.stat().st_ino, path.parent.stat().st_ino
        at = steps.index(("rename", file))
        assert ("sync", file) in steps[:at]
        assert ("sync", folder) in steps[at:]


def test_waiting_for_the_lock_of_another_specd_has_a_timeout(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path, lock_timeout_s=0.0)
    add(writer, "m", b"a")
    said = r"cannot lock .*/manifests: another specd is writing here"
    with safe_files.exclusive_lock(tmp_path / "manifests"):
        for change in (
            lambda: writer.delete(parse("m")),
            lambda: writer.copy(parse("m"), parse("n")),
            lambda: writer.publish(parse("n"), manifest(b"a")),
            writer.prune,
        ):
            with pytest.raises(StoreError, match=said):
                change()
    writer.delete(parse("m"))


def test_waiting_for_a_lock_is_logged(
    writer: StoreWriter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    add(writer, "m", b"a")
    lock = safe_files.exclusive_lock(writer.root / "manifests")
    lock.__enter__()
    monkeypatch.setattr(time, "sleep", lambda _: lock.__exit__(None, None, None))
    with caplog.at_level("WARNING", logger="specd"):
        writer.delete(parse("m"))
    assert f"waiting for {writer.root}/manifests: another specd" in caplog.text


@pytest.mark.contract("store.private")
def test_a_staged_file_is_removed_unless_it_was_kept(writer: StoreWriter) -> None:
    with writer.staged() as path:
        path.write_bytes(b"x")
        assert path.name.endswith("-partial")
        assert path.parent == writer.root / "blobs"
    with writer.staged() as path:
        path.write_bytes(b"y")
        writer.keep(path, digest(b"y"))
    with writer.staged() as path:
        path.write_bytes(b"y")
        writer.keep(path, digest(b"y"))
    assert blobs_of(writer) == {digest(b"y")}


@pytest.mark.contract("store.atomic")
def test_a_full_disk_leaves_no_partial_state(
    writer: StoreWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(writer, "m", b"old")
    before = files_of(writer)

    def full(path: Path, data: bytes) -> int:
        with path.open("wb") as file:
            file.write(data[:1])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(StoreError, match=r"cannot write the blob .*: No space left on device"):
            writer.put(b"more")
        with pytest.raises(StoreError, match=r"cannot write .*/m/latest: No space left on device"):
            writer.publish(parse("m"), manifest(b"old", config=b"old"))
        assert files_of(writer) == before
    assert writer.manifest_path(parse("m")).read_bytes() == manifest(b"old")


def test_a_manifest_that_cannot_be_written_leaves_no_folder(
    writer: StoreWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(writer, "m", b"old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(safe_files, "move", full)
    with pytest.raises(StoreError, match="No space left"):
        writer.publish(parse("example.com/new/m"), manifest(b"old"))
    assert not (writer.root / "manifests/example.com").exists()


def test_manifests_on_another_disk(writer: StoreWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    (writer.root / "manifests").mkdir(parents=True)
    moved: list[Path] = []
    plain = safe_files.move

    def move(source: Path, target: Path) -> None:
        moved.append(source)
        plain(source, target)

    monkeypatch.setattr(safe_files, "move", move)
    monkeypatch.setattr(Path, "stat", _other_device(Path.stat))
    add(writer, "m", b"a")
    assert moved[-1].parent == writer.root / "manifests"
    assert len(files_of(writer)) == 3


def _other_device(plain: object) -> object:
    def seen(path: Path, **options: bool) -> os.stat_result:
        found: os.stat_result = plain(path, **options)  # type: ignore[operator]
        if path.name != "manifests":
            return found
        fields = list(found)
        fields[2] += 1  # st_dev
        return os.stat_result(fields)

    return seen


def test_a_store_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"cannot write to .*: Not a directory"):
        StoreWriter(tmp_path / "file" / "models").put(b"x")


def test_access_problem_names_what_prevents_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    assert StoreWriter(tmp_path / "not" / "there").access_problem() == ""
    assert StoreWriter(tmp_path / "file").access_problem() == f"{tmp_path}/file is not a directory"
    writer = StoreWriter(tmp_path)
    writer.prepare()
    assert writer.access_problem() == ""

    def closed(path: Path, _: int) -> bool:
        return path.name != "manifests"

    monkeypatch.setattr(os, "access", closed)
    assert writer.access_problem() == f"{tmp_path}/manifests cannot be written"


# ------------------------------------------------------------------ pruning at start


def age(path: Path, seconds: float) -> None:
    then = path.stat().st_mtime - seconds
    os.utime(path, (then, then))


@pytest.mark.contract("store.prune")
def test_prune_removes_old_files_that_no_model_names(writer: StoreWriter) -> None:
    add(writer, "m", b"used")
    blobs = writer.root / "blobs"
    writer.put(b"unused, old")
    writer.put(b"unused, new")
    (blobs / "sha256-abc-partial").touch()
    (blobs / "note.txt").touch()
    (writer.root / ".specd-0123").touch()
    for path in (*blobs.iterdir(), writer.root / ".specd-0123"):
        if path != writer.blob_path(digest(b"unused, new")):
            age(path, HOUR + 60)
    (writer.root / "manifests/empty/ns").mkdir(parents=True)
    writer.prune()
    assert blobs_of(writer) == {digest(b"used"), digest(b"{}"), digest(b"unused, new")}
    assert not (writer.root / ".specd-0123").exists()
    assert not (writer.root / "manifests/empty").exists()


def test_a_digest_in_capitals_is_the_same_digest(writer: StoreWriter) -> None:
    add(writer, "m", b"used")
    path = writer.manifest_path(parse("m"))
    capitals = digest(b"used")[7:].upper().encode()
    path.write_bytes(path.read_bytes().replace(digest(b"used")[7:].encode(), capitals))
    age(writer.blob_path(digest(b"used")), HOUR + 60)
    writer.prune()
    assert digest(b"used") in blobs_of(writer)


def test_prune_keeps_a_paused_download_for_a_week(writer: StoreWriter) -> None:
    (writer.root / "manifests").mkdir(parents=True)
    paused, given_up = (writer.partial_path(digest(word)) for word in (b"paused", b"given up"))
    uploaded = writer.partial_path(digest(b"uploaded"))
    paused.parent.mkdir(parents=True)
    for path in (paused, given_up):
        path.touch()
        path.with_name(f"{path.name}-0").touch()
        age(path, 24 * HOUR if path == paused else 8 * 24 * HOUR)
        age(path.with_name(f"{path.name}-0"), 24 * HOUR if path == paused else 8 * 24 * HOUR)
    uploaded.touch()
    age(uploaded, 2 * HOUR)
    writer.prune()
    left = {path.name for path in paused.parent.iterdir()}
    assert left == {paused.name, f"{paused.name}-0"}


def test_a_file_that_is_no_manifest_does_not_protect_blobs(writer: StoreWriter) -> None:
    add(writer, "m", b"used")
    add(writer, "other", b"freed")
    manifest = writer.manifest_path(parse("m"))
    (manifest.parent / ".DS_Store").write_bytes(b"\0\0Bud1")
    writer.delete(parse("other"))
    assert digest(b"freed") not in blobs_of(writer)


def test_name_on_disk_has_the_case_of_the_disk(writer: StoreWriter) -> None:
    add(writer, "host.x/Me/Model:Tag", b"used")
    name_on_disk = writer.name_on_disk(parse("http://HOST.x/me/MODEL:tag"))
    assert (name_on_disk.full, name_on_disk.scheme) == ("host.x/Me/Model:Tag", "http")
    assert writer.name_on_disk(parse("me/other")).full == "registry.ollama.ai/me/other:latest"


@pytest.mark.contract("store.old-names")
def test_prune_renames_blobs_of_the_old_form(writer: StoreWriter) -> None:
    add(writer, "m", b"used")
    path = writer.blob_path(digest(b"used"))
    path.rename(path.with_name(digest(b"used")))
    writer.prune()
    assert path.read_bytes() == b"used"


@pytest.mark.contract("store.prune", "env.noprune")
def test_prune_removes_nothing_with_a_damaged_manifest_or_noprune(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path)
    add(writer, "m", b"used")
    writer.put(b"unused")
    age(writer.blob_path(digest(b"unused")), HOUR + 60)
    StoreWriter(tmp_path, noprune=True).prune()
    damaged = writer.manifest_path(parse("n"))
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(b"{")
    writer.prune()
    assert digest(b"unused") in blobs_of(writer)
    damaged.unlink()
    writer.prune()
    assert digest(b"unused") not in blobs_of(writer)


def test_prune_removes_nothing_if_the_manifests_cannot_be_read(
    writer: StoreWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(writer, "hidden.com/ns/m", b"used")
    for path in (writer.root / "blobs").iterdir():
        age(path, HOUR + 60)
    plain = Path.iterdir

    def closed(path: Path) -> Iterator[Path]:
        if path.name == "ns":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return plain(path)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "iterdir", closed)
        writer.prune()
    (writer.root / "manifests").rename(writer.root / "elsewhere")
    writer.prune()
    assert blobs_of(writer) == {digest(b"used"), digest(b"{}")}


def test_prune_does_not_create_a_store(tmp_path: Path) -> None:
    StoreWriter(tmp_path / "models").prune()
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize("damage", [b"", b"texl", b"text and more"])
def test_a_damaged_blob_is_replaced_by_a_whole_one(writer: StoreWriter, damage: bytes) -> None:
    name, _ = writer.put(b"text")
    writer.blob_path(name).write_bytes(damage)
    assert writer.put(b"text") == (name, True)
    assert writer.blob_path(name).read_bytes() == b"text"
    assert blobs_of(writer) == {name}


def test_prune_with_a_wrong_clock_removes_no_file_too_soon_and_keeps_none_forever(
    writer: StoreWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(writer, "m", b"used")
    unused, _ = writer.put(b"unused")
    left = writer.root / ".specd-0123"
    left.touch()
    for path in (writer.blob_path(unused), left):
        os.utime(path, (4e9, 4e9))
    writer.prune()
    assert digest(b"unused") in blobs_of(writer), "the file's age is unknown"
    now = time.time()
    with monkeypatch.context() as years_ago:
        years_ago.setattr(time, "time", lambda: 1000.0)
        writer.prune()
    assert abs(writer.blob_path(unused).stat().st_mtime - now) < HOUR, "its age counts from now on"
    with monkeypatch.context() as later:
        later.setattr(time, "time", lambda: now + 2 * HOUR)
        writer.prune()
    assert blobs_of(writer) == {digest(b"used"), digest(b"{}")}
    assert not left.exists()


def test_new_folders_are_synced_before_the_files_in_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder's entry is on disk only after its parent folder was synced."""
    synced: list[str] = []
    sync = safe_files.sync

    def noting(path: Path) -> None:
        synced.append(str(path.relative_to(tmp_path)))
        sync(path)

    monkeypatch.setattr(safe_files, "sync", noting)
    add(StoreWriter(tmp_path / "deep" / "store"), "m", b"weights")
    ours = "deep/store/manifests/registry.ollama.ai/library/m"
    parents = [str(path) for path in (*Path(ours).parents, Path(ours), Path("deep/store/blobs"))]
    assert set(parents) <= set(synced)
