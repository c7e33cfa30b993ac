"""Repeats the steps of a run up to a bad one, and names what became non-finite first."""
