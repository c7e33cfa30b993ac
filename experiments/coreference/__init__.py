"""Which head ties "it" to its noun, and what is lost without it?"""

SUBJECT = "attention"
