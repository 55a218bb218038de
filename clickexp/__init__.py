"""clickexp: experiments with click models for web search."""

__version__ = "0.1.0"
