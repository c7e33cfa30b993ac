"""Which of the original paper's variations (table 3) matter in a small translator?"""

SUBJECT = "models"
