"""x"""
def doctor():
    pass
