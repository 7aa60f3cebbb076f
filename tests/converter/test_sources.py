"""Sources that are refused before a converter runs, and the error without a converter."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from specd.cli.app import app
from specd.converter import ConversionSource, find_environment
from specd.create import CreateRequest, Creator
from specd.errors import InvalidRequest, SpecdError
from specd.store import StoreWriter

DIGEST = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    "name",
    ["evil.py", "pytorch_model.bin", "a/config.json", "..", ".json", "a.json\n", "a\\b.json", "x"],
)
def test_file_names_that_are_not_allowed_are_refused(name: str, tmp_path: Path) -> None:
    files = {"config.json": tmp_path, "model.safetensors": tmp_path, name: tmp_path}
    with pytest.raises(InvalidRequest, match="a model of safetensors cannot have the file"):
        ConversionSource(files=files).check()


def test_missing_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"come without config.json"):
        ConversionSource(files={"model.safetensors": tmp_path}).check()
    files = {"adapter_model.safetensors": tmp_path}
    with pytest.raises(InvalidRequest, match=r"come without adapter_config.json"):
        ConversionSource(files=files, is_adapter=True).check()
    files["adapter_config.json"] = tmp_path
    with pytest.raises(InvalidRequest, match=r"needs the config.json of its base model"):
        ConversionSource(files=files, is_adapter=True).check()


@pytest.mark.contract("create.safetensors")
async def test_the_error_without_a_converter_says_how_to_install_it(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "models")
    files = {name: writer.put(name.encode())[0] for name in ("config.json", "model.safetensors")}
    creator = Creator(writer, check_template=lambda _: None, converter_dir=tmp_path / "none")
    with pytest.raises(InvalidRequest, match="run `specd create --prepare-converter`"):
        await anext(creator.create(CreateRequest(model="m", files=files)))
    assert not (tmp_path / "none").exists()


def test_the_command_asks_before_it_downloads_the_converter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECD_CONVERTER_DIR", str(tmp_path / "converter"))
    (tmp_path / "model").mkdir()
    for name in ("config.json", "model.safetensors", "evil.py", "model.bin"):
        (tmp_path / "model" / name).touch()
    (tmp_path / "Modelfile").write_text("FROM ./model")
    for arguments in (["x", "-f", str(tmp_path / "Modelfile")], ["--prepare-converter"]):
        result = CliRunner().invoke(app, ["create", *arguments])
        assert isinstance(result.exception, SpecdError)
        assert "run `specd create --prepare-converter --yes`" in str(result.exception)
        assert f"  {tmp_path / 'converter'}\n" in result.output
    assert find_environment(tmp_path / "converter") is None
    assert not (tmp_path / "converter").exists()


def test_a_model_has_a_name() -> None:
    result = CliRunner().invoke(app, ["create"])
    assert result.exit_code == 2
    assert "the new model needs a name: specd create NAME" in result.output
