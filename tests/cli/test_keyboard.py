"""Typed messages, the history, and `specd run` on a terminal."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from specd.cli.keyboard import HISTORY_FILE, Keyboard, read_message
from tests.cli.conversation_helpers import asked_of, daemon, typed


@pytest.mark.parametrize(
    "lines,message",
    [
        (["hello"], "hello"),
        (['"""one', "two", 'three"""'], "one\ntwo\nthree"),
        (['"""one"""'], "one"),
        (['"""', "one", '"""'], "\none\n"),
        (['/set system """Be', 'kind."""'], "/set system Be\nkind."),
        (['what is """?'], 'what is """?'),
        (["/bye"], "/bye"),
        ([], None),
        (['"""unfinished'], None),
        (['"""dropped', KeyboardInterrupt, "again"], "again"),
        ([KeyboardInterrupt, KeyboardInterrupt], None),
    ],
)
def test_messages_are_lines_or_text_between_fences(
    lines: list[str | type[BaseException]], message: str | None
) -> None:
    hints: list[int] = []
    assert read_message(typed(*lines), lambda: hints.append(1)) == message
    assert len(hints) == lines.count(KeyboardInterrupt)


def test_the_history_file_is_private_and_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "state" / HISTORY_FILE
    monkeypatch.setattr("builtins.input", lambda _prompt: "two\N{SNOWMAN}")
    keyboard = Keyboard(file)
    keyboard.read_line(">>> ")
    keyboard.remembers = False
    keyboard.read_line(">>> ")
    assert file.read_text(encoding="utf-8") == "two\N{SNOWMAN}\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.write_text("".join(f"{n}\n" for n in range(2001)), encoding="utf-8")
    Keyboard(file)
    lines = file.read_text(encoding="utf-8").splitlines()
    assert (len(lines), lines[-1]) == (1000, "2000")
    assert [path.name for path in file.parent.iterdir()] == [HISTORY_FILE]


def test_an_unwritable_history_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("builtins.input", lambda _prompt: "one")
    assert Keyboard(tmp_path / "file" / HISTORY_FILE).read_line(">>> ") == "one"
    assert capsys.readouterr() == ("", "")


# ------------------------------------------------------------------------- at a terminal


@dataclass
class Terminal:
    process: asyncio.subprocess.Process
    descriptor: int
    seen: str = ""
    more: asyncio.Event = field(default_factory=asyncio.Event)

    def hear(self) -> None:
        with suppress(OSError):  # the process has closed the other end
            data = os.read(self.descriptor, 4096)
            self.seen += re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]", "", data.decode())
        self.more.set()

    async def wait_for(self, text: str) -> None:
        """Wait for `text`; the next call searches only the output after it."""
        while text not in self.seen:
            self.more.clear()
            await self.more.wait()
        self.seen = self.seen.partition(text)[2]

    def type(self, text: str) -> None:
        os.write(self.descriptor, text.encode())

    async def interrupt(self, text: str) -> None:
        """Repeat Ctrl-C until `text` appears: readline can miss one just before it reads a key."""
        heard = asyncio.ensure_future(self.wait_for(text))
        while not heard.done():
            self.type("\x03")
            await asyncio.wait({heard}, timeout=1)


@asynccontextmanager
async def terminal(url: str, folder: Path, **variables: str) -> AsyncIterator[Terminal]:
    ours, theirs = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "specd", "run", "m"),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: os.close(os.open(os.ttyname(theirs), os.O_RDWR)),  # it controls
        env=os.environ
        | {"OLLAMA_HOST": url, "SPECD_STATE_DIR": str(folder), "TERM": "xterm"}
        | variables,
    )
    os.close(theirs)
    at = Terminal(process, ours)
    loop = asyncio.get_running_loop()
    loop.add_reader(ours, at.hear)
    try:
        yield at
    finally:
        loop.remove_reader(ours)
        if process.returncode is None:
            process.kill()
        await process.wait()
        os.close(ours)


async def test_a_session_at_a_terminal(tmp_path: Path) -> None:
    fake = daemon()
    async with fake.serve() as url, terminal(url, tmp_path) as at:
        await at.wait_for(">>> ")
        at.type("half a line")
        await at.wait_for("half a line")
        await at.interrupt("Ctrl-D or /bye leaves.")
        await at.wait_for(">>> ")
        at.type("first\x7fT\n")  # edited
        await at.wait_for("answer 1")
        await at.wait_for(">>> ")
        at.type("\x1b[A\n")  # recalled
        await at.wait_for("answer 3")
        await at.wait_for(">>> ")
        at.type("/bye\n")
        assert await at.process.wait() == 0
    said = [body["messages"][-1]["content"] for body in asked_of(fake, "chat")]
    assert said == ["firsT", "firsT"]
    assert (tmp_path / HISTORY_FILE).read_text() == "firsT\nfirsT\n/bye\n"


async def test_a_later_session_recalls_the_history_unless_it_is_switched_off(
    tmp_path: Path,
) -> None:
    (tmp_path / HISTORY_FILE).write_text("earlier\n")
    fake = daemon()
    async with fake.serve() as url:
        for variable in ("", "1"):
            async with terminal(url, tmp_path, OLLAMA_NOHISTORY=variable) as at:
                await at.wait_for(">>> ")
                at.type("\x1b[Ax\n")
                await at.wait_for("answer 1")
                await at.wait_for(">>> ")
                at.type("\x04")
                assert await at.process.wait() == 0
    said = [body["messages"][-1]["content"] for body in asked_of(fake, "chat")]
    assert said == ["earlierx", "x"]
    assert (tmp_path / HISTORY_FILE).read_text() == "earlier\nearlierx\n"


async def test_a_refused_model_ends_the_session_with_one_line(tmp_path: Path) -> None:
    fake = daemon()
    fake.status = {"/api/show": 400}
    fake.answers = {"/api/show": {"error": "no such thing"}}
    async with fake.serve() as url, terminal(url, tmp_path) as at:
        await at.wait_for("Error: no such thing\r\n")
        assert await at.process.wait() == 1
    assert json.dumps(fake.asked) == '[["/api/show", {"model": "m"}]]'
