"""Experiments: a folder each, with a question, runs as data, a report, and what it found."""
