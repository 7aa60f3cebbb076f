"""specd: a drop-in replacement for the Ollama daemon that decodes speculatively."""

__version__ = "0.1.0"

#: Name of the distribution for pip: another project on the package index is called specd.
DISTRIBUTION = "specd-llm"

#: The Ollama level whose REST API specd answers; clients gate features on /api/version.
OLLAMA_API_VERSION = "0.33.0"
