"""Which residual schemes of 2024 to 2026 help at depth, and what do their deep layers do?"""

SUBJECT = "norms"
