"""When do induction heads form, by depth, residual scheme, position, draw and warm-up?"""

SUBJECT = "attention"
