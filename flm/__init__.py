"""flm: an OpenAI-style endpoint whose long prompts are read once."""

__version__ = "0.1.0"
