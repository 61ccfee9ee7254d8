"""Exercise: lanes that hand each other their registers."""
