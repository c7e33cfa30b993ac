"""Which parts of Admin's initialisation matter?"""
