"""Is one trunk with decayed branches as good as a schedule for each length of training?"""

SUBJECT = "rates"
