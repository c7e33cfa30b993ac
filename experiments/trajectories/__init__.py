"""Is a training that comes back from its exported checkpoints measured as it was when it ran?"""

SUBJECT = "tools"
