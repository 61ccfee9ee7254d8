"""`megafuse diagnose`: the record, the findings, and that nothing of the user's is lost."""
