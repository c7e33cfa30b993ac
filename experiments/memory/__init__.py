"""What does memory of earlier segments bring a language model, and what does it cost to score?"""

SUBJECT = "attention"
