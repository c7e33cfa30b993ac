"""Do recurrent models score on SCAN's splits what Lake and Baroni saw?"""

SUBJECT = "data"
