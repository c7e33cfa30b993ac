"""What does attention gain over recurrence, in the time of a step and in long sentences?"""

SUBJECT = "models"
